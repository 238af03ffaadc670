// One model, several threads, C++: threads [MODEL [THREADS]]. Each thread has a context of one thread, shares the model's weights, and writes a text of
// its own; then all texts are written once more by one thread, and must be the same.
//
//     g++ -std=c++17 threads.cpp $(pkg-config --cflags --libs linnet) -pthread -o threads && ./threads model/ 4
#include <linnet/state.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

// Handles that destroy themselves.
template <class T, void (*destroy)(T *)>
struct deleter {
    void operator()(T *p) const { destroy(p); }
};
template <class T, void (*destroy)(T *)>
using handle = std::unique_ptr<T, deleter<T, destroy>>;
using context = handle<linnet_context, linnet_context_destroy>;
using config = handle<linnet_config, linnet_config_destroy>;
using model = handle<linnet_model, linnet_model_destroy>;
using session = handle<linnet_session, linnet_session_destroy>;

static void check(const context &c, linnet_status s)
{
    if (s != LINNET_OK) throw std::runtime_error(std::string(linnet_error_message(c.get())) + "\n" + linnet_error_hint(c.get()));
}

static context make_context(int threads)
{
    linnet_context_options o = LINNET_CONTEXT_OPTIONS_INIT;
    linnet_context *raw = nullptr;
    o.threads = threads;
    const linnet_status s = linnet_context_create(&o, &raw);
    context c(raw);
    check(c, s);
    return c;
}

static model make_model(const context &c, const char *folder)
{
    linnet_model *m = nullptr;
    if (folder) {
        check(c, linnet_model_load(c.get(), folder, LINNET_F32, &m));
        return model(m);
    }
    linnet_config *raw = nullptr;
    check(c, linnet_config_create(c.get(), "delta_net", &raw));
    config k(raw);
    check(c, linnet_config_preset(c.get(), k.get(), "nano"));
    check(c, linnet_config_set(c.get(), k.get(), "vocab_size", "256"));
    check(c, linnet_model_create(c.get(), k.get(), LINNET_F32, 1, &m));
    return model(m);
}

// Forty ids, each the most likely one behind those before it; `seed` is the first.
static std::vector<std::int32_t> write(const context &c, const model &m, std::int32_t seed)
{
    linnet_session *raw = nullptr;
    linnet_state *state = nullptr; // the session's
    linnet_session_info info = {};
    info.size = sizeof info;
    check(c, linnet_session_create(c.get(), m.get(), nullptr, &raw));
    session s(raw);
    check(c, linnet_session_get_info(s.get(), &info));
    check(c, linnet_state_create(s.get(), &state));
    std::vector<float> logits(static_cast<std::size_t>(info.vocabulary));
    std::vector<std::int32_t> text{seed};
    while (text.size() < 40) {
        linnet_session_call call = LINNET_SESSION_CALL_INIT;
        call.state = state, call.ids = &text.back(), call.n_ids = 1, call.wants = LINNET_LOGITS_LAST, call.logits = logits.data();
        check(c, linnet_session_run(s.get(), &call, 1));
        std::size_t best = 0;
        for (std::size_t i = 1; i < logits.size(); i++)
            if (logits[i] > logits[best]) best = i;
        text.push_back(static_cast<std::int32_t>(best));
    }
    return text;
}

int main(int argc, char **argv)
try {
    const char *folder = argc > 1 ? argv[1] : nullptr;
    const int n = argc > 2 ? std::atoi(argv[2]) : 3;
    const context c = make_context(1);
    const model m = make_model(c, folder);
    std::vector<std::vector<std::int32_t>> texts(static_cast<std::size_t>(n > 0 ? n : 1));
    std::vector<std::string> wrong(texts.size());
    std::vector<context> contexts;
    std::vector<model> shared;
    for (std::size_t i = 0; i < texts.size(); i++) {
        linnet_model *mine = nullptr;
        contexts.push_back(make_context(1));
        check(contexts[i], linnet_model_share(contexts[i].get(), m.get(), &mine));
        shared.emplace_back(mine);
    }
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < texts.size(); i++)
        threads.emplace_back([&, i] {
            try {
                texts[i] = write(contexts[i], shared[i], static_cast<std::int32_t>(i));
            } catch (const std::exception &e) {
                wrong[i] = e.what();
            }
        });
    for (std::thread &t : threads) t.join();
    bool same = true;
    for (std::size_t i = 0; i < texts.size(); i++) {
        if (!wrong[i].empty()) throw std::runtime_error(wrong[i]);
        same = same && texts[i] == write(c, m, static_cast<std::int32_t>(i));
    }
    std::printf("%zu threads on one model, each as one thread alone: %s\n", texts.size(), same ? "the same texts" : "other texts");
    return !same;
} catch (const std::exception &e) {
    std::fprintf(stderr, "threads: %s\n", e.what());
    return 2;
}
