/* The delta rule under a gate for each key channel on tensor cores: KDA, and RWKV-7 as dplr; the calls (delta_vector.cuh). One kernel makes pairs,
 * readers, writers and e^{G_n}, one T, both parallel over chunks; then a chain over chunks, or for the gradients one in each direction at once, and
 * what each chunk has of them. Nothing is kept from the forward pass. */
#include "recurrence/delta/delta_cuda.cuh"
#include "recurrence/delta/delta_vector.cuh"

namespace {

struct delta_work {
    delta_vector p;
    float *between; /* [Hv,K,V] of a sequence in parts the state, or its gradient */
    size_t bytes;
};

delta_work work_of(const lnt_recur_args *a, void *at, bool untied, bool backward)
{
    vector_arena m = { (char *)at, 0 };
    delta_work w = {};
    delta_vector &p = w.p;
    p.slots = a->tokens / C + a->sequences, p.K = a->K, p.V = a->V, p.untied = untied;
    const int64_t items = p.slots * a->Hv, rows = items * C * a->K, pairs = items * C * C;
    p.of.erase = m.take<bf16>(rows), p.of.reader = m.take<bf16>(rows), p.of.write = m.take<bf16>(rows);
    p.of.T = m.take<bf16>(pairs), p.of.P = m.take<bf16>(pairs), p.of.strict = m.take<bf16>(pairs);
    p.of.E = m.take<float>(items * a->K);
    if (!untied) p.of.strength = m.take<float>(items * C);
    if (untied) {
        p.of.value_write = m.take<bf16>(rows);
        p.of.M = m.take<bf16>(pairs), p.of.value_P = m.take<bf16>(pairs), p.of.A_ak = m.take<bf16>(pairs);
    }
    if (backward) {
        p.of.S = m.take<bf16>(items * a->K * a->V), p.of.dS = m.take<bf16>(items * a->K * a->V);
        p.of.X = m.take<bf16>(items * C * a->V), p.of.dX = m.take<bf16>(items * C * a->V);
    }
    if (a->sequences == 1) w.between = m.take<float>((int64_t)a->Hv * a->K * a->V);
    w.bytes = m.used;
    p.until = (int)p.slots;
    vector_tiles &in = p.in;
    in.q = (const bf16 *)a->q, in.k = (const bf16 *)a->k, in.v = (const bf16 *)a->v, in.d_o = (const bf16 *)a->do_;
    in.gk = (const float *)a->gk, in.cu = a->cu_seqlens_device, in.N = a->sequences, in.Hv = a->Hv, in.scale = (float)a->scale;
    in.dq = (bf16 *)a->dq, in.dk = (bf16 *)a->dk, in.dgk = (float *)a->dgk;
    p.a = (const bf16 *)a->a, p.b = (const bf16 *)a->b, p.beta = (const float *)a->beta;
    p.s0 = (const float *)a->s0, p.dsT = (const float *)a->dsT;
    p.o = (bf16 *)a->o, p.dv = (bf16 *)a->dv, p.da = (bf16 *)a->da, p.db = (bf16 *)a->db;
    p.sT = (float *)a->sT, p.ds0 = (float *)a->ds0, p.dbeta = (float *)a->dbeta;
    return w;
}

template <bool UNTIED> void forward(const void *args, const lnt_device *device)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    if (!a->sequences) return;
    delta_work w = work_of(a, a->workspace, UNTIED, false);
    const int parts[] = { 10, 14, 16 }; /* where they end, sixteenths: the rows of one take less than the chain of the one before */
    for (const int part : parts) {
        if (part < 16 && !lnt_delta_in_parts(a, d)) continue;
        w.p.until = (int)(w.p.slots * part / 16);
        w.p.sT = part < 16 ? w.between : (float *)a->sT;
        lnt_delta_vector_prepare(w.p, d);
        lnt_delta_vector_forward(w.p, d);
        w.p.from = w.p.until;
        w.p.s0 = w.between;
    }
}
template <bool UNTIED> void backward(const void *args, const lnt_device *device)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    const lnt_cuda *d = (const lnt_cuda *)device;
    if (!a->sequences) return;
    delta_work w = work_of(a, a->workspace, UNTIED, true);
    lnt_delta_vector_prepare(w.p, d);
    const int cut = lnt_delta_in_parts(a, d) ? (int)(w.p.slots * 3 / 8) : 0;
    if (cut) { /* while the states' chain goes through all chunks, that in reverse goes through these */
        w.p.from = cut;
        w.p.ds0 = w.between;
        lnt_delta_vector_chains(w.p, d);
        w.p.from = 0, w.p.until = cut, w.p.behind = cut;
        w.p.dsT = w.between;
        w.p.ds0 = (float *)a->ds0;
        w.p.reverse_alone = true;
    }
    lnt_delta_vector_chains(w.p, d);
    lnt_delta_vector_back(w.p, d);
}

template <bool UNTIED> size_t workspace(const void *args, bool is_backward, int)
{
    return work_of((const lnt_recur_args *)args, NULL, UNTIED, is_backward).bytes;
}

const char *declines(const void *args, bool is_backward)
{
    const lnt_recur_args *a = (const lnt_recur_args *)args;
    if (a->dtype != LINNET_BF16) return "it takes bf16 tensors";
    if (!is_backward && ((a->K != 64 && a->K != 128) || a->V % 32)) return "K of 64 or 128 and V in 32s are offered";
    if (is_backward && ((a->K != 64 && a->K != 128) || (a->V != 64 && a->V != 128))) return "K and V of 64 or 128 are offered";
    if (a->Hq != a->Hv) return "as many key heads as value heads are offered";
    if (a->chunk && a->chunk != C) return "its chunk length is 64";
    if (a->tokens / C + a->sequences >= ((int64_t)1 << 30) / a->Hv) return "too many tokens";
    if (a->sequences >= ((int64_t)1 << 30) / a->Hv / (a->V / 32)) return "too many sequences";
    return NULL;
}

} // namespace

#define DELTA_VECTOR(NAME, UNTIED)                                                                                                 \
    extern const lnt_recur_impl NAME;                                                                                               \
    const lnt_recur_impl NAME = {                                                                                                   \
        .name = "chunk-sm90",                                                                                                       \
        .form = LINNET_FORM_CHUNK,                                                                                                  \
        .device = LNT_DEVICE_CUDA,                                                                                                  \
        .needs = 90,                                                                                                                \
        .declines = declines,                                                                                                       \
        .workspace = workspace<UNTIED>,                                                                                             \
        .forward = NULL,                                                                                                            \
        .backward = NULL,                                                                                                           \
        .put_forward = forward<UNTIED>,                                                                                             \
        .put_backward = backward<UNTIED>,                                                                                           \
    }
extern "C" {
DELTA_VECTOR(lnt_kda_chunk_sm90, false);
DELTA_VECTOR(lnt_dplr_chunk_sm90, true);
}
