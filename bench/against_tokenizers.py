#!/usr/bin/env python3
"""linnet tokenize beside the tokenizers package: python3 bench/against_tokenizers.py build/linnet [FOLDER] [--lines N] [--time]

Makes tokenizer files of the kinds that published models have, with that package (pip install tokenizers), and N lines of mixed Unicode text. For every
file: the same ids for every line, with the template and without; where the package's decode(encode(x)) is x, linnet's is too. --time: seconds for ten
megabytes of text, and for a word of a megabyte against half of it. Ends with 1 when anything differs."""
import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parent.parent
MARK = "\u2581"
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
WORDS = """the cat sat on a mat and it's they'll I'VE don't 3.14159 2024 1,000,000 x=y+z; for(int i=0;i<n;i++) return foo_bar::baz<T>(); caf\u00e9 cafe\u0301
na\u00efve \u00c5ngstr\u00f6m \u212b \ufb01ne \u2460\u2461 \uff21\uff22\uff23 \u00bd \u0130stanbul stra\u00dfe \u03a3\u03af\u03c3\u03c5\u03c6\u03bf\u03c2 \u041f\u0440\u0438\u0432\u0435\u0442 \u043c\u0438\u0440
\u65e5\u672c\u8a9e\u306e\u6587\u7ae0 \u4e2d\u6587\u5206\u8bcd \ud55c\uad6d\uc5b4 \u1112\u1161\u11ab \u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd \u0928\u092e\u0938\u094d\u0924\u0947 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35
\U0001f426 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea \u2764\ufe0f \u2028 \u00a0 \u3000 \u200b \ufeff \t \u0001 \u007f \u2581 \u2581\u2581 <s> </s> <|endoftext|> <|im_start|>
<tool> TOOL <mask>, <mask>s ... --- !!! ?! $%^&* \u00ab\u00bb \u201cquoted\u201d \u2019 \u2014 \u20ac100 #hashtag @name https://example.org/a?b=c&d=e
<0x0A> [UNK] \ud7a3 \u0e3f \U00010348 \U0001d54f q\u0307\u0323 \u1e9b\u0323""".split(" ")


def text_lines(n, seed=1):
    """Words of many scripts with blanks of many kinds between them, some lines of code and prose, some of letters alone."""
    r = random.Random(seed)
    prose = [line for page in sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "src" / "hub").glob("*.c")) for line in page.read_text().splitlines()]
    words = [w for w in WORDS + [w.strip("\n") for w in WORDS] if "\n" not in w] + [p for w in WORDS if "\n" in w for p in w.split("\n")]
    lines = []
    while len(lines) < n:
        kind = r.random()
        if kind < 0.3:
            line = r.choice(prose)
        elif kind < 0.85:
            blanks = [" "] * 12 + ["", "  ", "    ", "\t", "\u00a0", "\r", " \u3000"]
            line = "".join(r.choice(words) + r.choice(blanks) for _ in range(r.randint(1, 30)))
        elif kind < 0.95:
            line = "".join(chr(r.choice([r.randint(32, 126), r.randint(0xa0, 0x24f), r.randint(0x370, 0x5ff), r.randint(0x900, 0x97f), r.randint(0x3040, 0x30ff),
                                         r.randint(0x4e00, 0x9fa5), r.randint(0xac00, 0xd7a3), r.randint(0x1f300, 0x1f64f)])) for _ in range(r.randint(1, 40)))
        else:
            line = r.choice("ab \u2581.") * r.randint(1, 300)
        lines.append(line.replace("\n", " ").replace("\0", ""))
    return lines


def bpe(**options):
    return models.BPE(**options)


def byte_level(pre, normalizer=None, ignore_merges=False, size=1500, specials=("<|endoftext|>", "<s>")):
    t = Tokenizer(bpe(ignore_merges=ignore_merges))
    t.pre_tokenizer, t.decoder = pre, decoders.ByteLevel()
    if normalizer:
        t.normalizer = normalizer
    return t, trainers.BpeTrainer(vocab_size=size, special_tokens=list(specials), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)


def spelled_bpe(normalizer, pre, decoder, fallback=True, fuse=True, size=1500):
    specials = ["<unk>", "<s>", "</s>"] + ([f"<0x{b:02X}>" for b in range(256)] if fallback else [])
    t = Tokenizer(bpe(unk_token="<unk>", byte_fallback=fallback, fuse_unk=fuse))
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    t.decoder = decoder
    return t, trainers.BpeTrainer(vocab_size=size, special_tokens=specials, limit_alphabet=300, show_progress=False)


def unigram(normalizer, pre, decoder, size=6000):
    t = Tokenizer(models.Unigram())
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre, decoder
    return t, trainers.UnigramTrainer(vocab_size=size, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False)


def bos(t, end=False):
    t.post_processor = processors.TemplateProcessing(single="<s> $A </s>" if end else "<s> $A", pair="<s> $A <s> $B",
                                                     special_tokens=[("<s>", t.token_to_id("<s>"))] + ([("</s>", t.token_to_id("</s>"))] if end else []))


def llama_decoder():
    return decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])


def changed(t, change):
    """The tokenizer after a change of its JSON."""
    o = json.loads(t.to_str())
    change(o)
    return Tokenizer.from_str(json.dumps(o))


def no_byte_tokens_are_special(o):
    o["added_tokens"] = [a for a in o["added_tokens"] if not a["content"].startswith("<0x")]


def make(text):
    """name -> tokenizer"""
    P, N = pre_tokenizers, normalizers
    made = {}

    def train(name, pair, after=None, change=None):
        t, trainer = pair
        t.train_from_iterator([line for line in text if len(set(line)) > 2], trainer)
        if after:
            t = after(t) or t
        made[name] = changed(t, change) if change else t

    train("gpt2", byte_level(P.ByteLevel(add_prefix_space=False)))
    train("gpt-neox", byte_level(P.ByteLevel(add_prefix_space=False), N.NFC()),
          lambda t: t.add_tokens([AddedToken(" " * n, normalized=False) for n in range(2, 25)] + [AddedToken("caf\u00e9", normalized=True)]) and None)
    train("qwen", byte_level(P.Sequence([P.Split(Regex(QWEN), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)]), N.NFC()),
          lambda t: t.add_special_tokens(["<|im_start|>"]) and None)
    train("llama3", byte_level(P.Sequence([P.Split(Regex(LLAMA3), "isolated"), P.ByteLevel(add_prefix_space=False, use_regex=False)]), ignore_merges=True), bos)
    train("digits", byte_level(P.Sequence([P.Digits(individual_digits=True), P.Punctuation("contiguous"), P.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f]+"), "isolated"),
                                           P.ByteLevel(add_prefix_space=False)])))
    train("merged", byte_level(P.Sequence([P.Split(" ", "merged_with_next"), P.Split(Regex(r"\p{P}"), "merged_with_previous"), P.Digits(), P.Split("::", "isolated"),
                                           P.Split(Regex(r"\w+"), "contiguous", invert=True), P.ByteLevel(add_prefix_space=True, use_regex=False)])))
    train("roberta", byte_level(P.ByteLevel(add_prefix_space=True), specials=("<s>", "</s>", "<unk>", "<mask>")),
          lambda t: setattr(t, "post_processor", processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))))
    train("added", byte_level(P.ByteLevel(add_prefix_space=False), N.Sequence([N.NFKC(), N.Lowercase(), N.Strip()])),
          lambda t: t.add_tokens([AddedToken("<mask>", lstrip=True, normalized=False), AddedToken("TOOL", single_word=True, normalized=True), AddedToken("<tool>", rstrip=True),
                                  AddedToken("cat", single_word=True, normalized=False), AddedToken("\u4e2d\u6587", lstrip=True, rstrip=True)]) and None)
    train("llama2", spelled_bpe(N.Sequence([N.Prepend(MARK), N.Replace(" ", MARK)]), None, llama_decoder()), bos, no_byte_tokens_are_special)
    train("mistral", spelled_bpe(None, P.Metaspace(MARK, "first", split=False), llama_decoder()), bos, no_byte_tokens_are_special)
    train("gemma", spelled_bpe(N.Replace(" ", MARK), P.Split(" ", "merged_with_previous"),
                               decoders.Sequence([decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()])), bos, no_byte_tokens_are_special)
    train("sentencepiece-bpe", spelled_bpe(N.NFKC(), P.Metaspace(MARK, "always"), decoders.Metaspace(MARK, "always"), fallback=False, fuse=False), lambda t: bos(t, True))
    train("unknown-fused", spelled_bpe(N.NFD(), P.Metaspace(MARK, "never"), decoders.Metaspace(MARK, "never"), fallback=False))
    train("unigram", unigram(N.Sequence([N.Nmt(), N.NFKC(), N.Replace(Regex(" {2,}"), " ")]), P.Metaspace(MARK, "always"), decoders.Metaspace(MARK, "always")), lambda t: bos(t, True))
    train("unigram-uncut", unigram(N.Sequence([N.NFKD(), N.StripAccents(), N.Lowercase()]), P.Metaspace(MARK, "first", split=False), decoders.Metaspace(MARK, "first")))
    train("unigram-whitespace", unigram(N.NFC(), P.Sequence([P.WhitespaceSplit(), P.Punctuation(), P.Metaspace(MARK, "always")]), decoders.Metaspace(MARK, "always")))
    train("words", spelled_bpe(N.Strip(), P.Whitespace(), decoders.Fuse(), fallback=False))
    add_fallback = [[f"<0x{b:02X}>", -20.0] for b in range(256)]
    made["unigram-fallback"] = changed(made["unigram"], lambda o: o["model"].update(byte_fallback=True, vocab=o["model"]["vocab"] + add_fallback) or
                                       o.update(decoder=json.loads(made["llama2"].to_str())["decoder"]))
    return made


# ---- tests/tokenizer_cases.json: small files for the tests, with what the package makes of a few texts ----

def small_models():
    """Three models of a few tokens."""
    letters = list("abcdehlnortw .,!'" + MARK)
    merges = [("t", "h"), ("th", "e"), ("l", "l"), ("h", "e"), ("he", "ll"), ("hell", "o"), (MARK, "the"), (MARK, "w"), (MARK + "w", "o"), (MARK, MARK), ("a", "b"), ("b", "c")]
    spelled = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + letters
    spelled += [x for a, b in merges if (x := a + b) not in spelled]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    over_bytes = [("t", "h"), ("th", "e"), ("\u0120", "the"), ("l", "l"), ("h", "e"), ("he", "ll"), ("1", "2"), ("12", "3"), ("\u0120", "\u0120"), ("\u00c3", "\u00a9")]
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), (MARK, -3.0), (MARK + "the", -4.5), ("the", -5.0), (MARK + "h", -6.5), ("e", -4.0), ("he", -4.75), ("ll", -5.5), ("llo", -6.25),
              ("l", -4.25), ("o", -4.5), ("h", -5.25), ("t", -5.125), ("a", -4.0), ("ab", -6.0), ("abc", -9.5), ("bc", -6.5), ("b", -5.0), ("c", -5.0), ("<0x41>", -20.0), ("<0xC3>", -20.0)]
    return {"characters": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True,
                           "ignore_merges": False, "vocab": {x: i for i, x in enumerate(spelled)}, "merges": [list(m) for m in merges]},
            "bytes": {"type": "BPE", "vocab": {x: i for i, x in enumerate(alphabet + [a + b for a, b in over_bytes])}, "merges": [" ".join(m) for m in over_bytes]},
            "unigram": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}}


def small_cases():
    """(model, changes of it, parts, texts)"""
    sequence = lambda kind, *members: {"type": "Sequence", kind: list(members)}
    byte = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    bytes_alone = dict(byte, use_regex=False)
    mark = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": "always", "split": True}
    replace = lambda what, by: {"type": "Replace", "pattern": what if isinstance(what, dict) else {"String": what}, "content": by}
    llama = {"normalizer": sequence("normalizers", {"type": "Prepend", "prepend": MARK}, replace(" ", MARK)),
             "decoder": sequence("decoders", replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0})}
    split = lambda pattern, behavior, invert=False: {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
    token = lambda i, text, **how: dict({"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}, **how)
    special = [token(1, "<s>", special=True), token(2, "</s>", special=True)]
    template = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}, "</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}
    text = ["hello the  world!", "the cafe\u0301 caf\u00e9 12345 ab", " the\u2581a\n\tb\u0085c", "", "x", "\U0001f426\u65e5 the the"]
    over = lambda pre, **parts: ("bytes", {}, dict({"pre_tokenizer": pre, "decoder": byte}, **parts), text)
    yield over(byte)
    yield over(dict(byte, add_prefix_space=True))
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield "bytes", {}, {"pre_tokenizer": byte, "decoder": byte, "normalizer": {"type": form}}, ["caf\u00e9 e\u0301 \ufb01 \u2460 \uac01 \u1100\u1161\u11a8", "q\u0307\u0323 \u1e9b\u0323"]
    yield over(byte, normalizer=sequence("normalizers", {"type": "Strip", "strip_left": True, "strip_right": False}, {"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}))
    yield "bytes", {}, {"pre_tokenizer": byte, "decoder": byte, "normalizer": {"type": "Lowercase"}}, ["THE \u0130 \u00c9 \u03a3"]
    yield "bytes", {}, {"pre_tokenizer": byte, "decoder": byte, "normalizer": sequence("normalizers", {"type": "Nmt"}, replace({"Regex": " {2,}"}, " "))}, ["a\u0001b\u200bc \u2028 \ufeff d\te"]
    for behavior in ("Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"):
        for invert in (False, True):
            yield over(sequence("pretokenizers", split({"Regex": r"\s|l"}, behavior, invert), bytes_alone))
    yield over(sequence("pretokenizers", split({"String": "e"}, "Isolated"), {"type": "Digits", "individual_digits": True}, bytes_alone))
    yield over(sequence("pretokenizers", {"type": "Punctuation", "behavior": "Contiguous"}, {"type": "Digits", "individual_digits": False}, sequence("pretokenizers", {"type": "WhitespaceSplit"}, bytes_alone)))
    yield over(sequence("pretokenizers", {"type": "Whitespace"}, dict(byte, add_prefix_space=True)))
    yield "bytes", {"ignore_merges": True}, {"pre_tokenizer": bytes_alone, "decoder": byte}, ["the", "hell", "123", "thethe"]
    added = [token(266, "<m>", lstrip=True), token(267, "<r>", rstrip=True), token(268, "THE", single_word=True), token(269, "Caf\u00c9", normalized=True), token(270, "  "), token(271, "   "),
             token(272, "<s>", special=True)]
    yield ("bytes", {}, {"pre_tokenizer": byte, "decoder": byte, "normalizer": {"type": "Lowercase"}, "added_tokens": added},
           ["a <m> b", "a <r>  b", "THE them THE, THEM xTHE", "a CAF\u00c9 caf\u00e9s", "a     b", "<s>the<s> <m><r> <m>", "  <m>", "<r> "])
    yield "characters", {}, dict(llama, added_tokens=special, post_processor=template), text + ["<s> the</s>the <s>", "hello hello", "w ww", "<0x0A>"]
    for scheme in ("always", "first", "never"):
        for cut in (True, False):
            yield ("characters", {}, {"pre_tokenizer": dict(mark, prepend_scheme=scheme, split=cut), "decoder": dict(mark, prepend_scheme=scheme), "added_tokens": special},
                   text + ["<s>the", " the<s> the", "  "])
    yield "characters", {"byte_fallback": False}, dict(llama), ["the xyz the x", "xx"]
    yield "characters", {"byte_fallback": False, "fuse_unk": False}, dict(llama), ["the xyz the x", "xx"]
    yield "characters", {"byte_fallback": False, "unk_token": None}, dict(llama), ["the xyz the x", "xx"]
    yield ("characters", {}, {"normalizer": replace(" ", MARK), "pre_tokenizer": split({"String": " "}, "MergedWithPrevious"),
                              "decoder": sequence("decoders", replace(MARK, " "), {"type": "ByteFallback"}, {"type": "Fuse"}), "added_tokens": special,
                              "post_processor": sequence("processors", {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}, template)}, text)
    for pre in (mark, dict(mark, split=False), sequence("pretokenizers", {"type": "Whitespace"}, mark)):
        yield "unigram", {}, {"pre_tokenizer": pre, "decoder": mark, "added_tokens": special, "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2], "cls": ["<s>", 1], "trim_offsets": True,
                              "add_prefix_space": False}}, ["the hello", "abc abab bcc", "xyz the x", "<unk>", "", "  the"]
    yield "unigram", {"byte_fallback": True}, {"pre_tokenizer": mark, "decoder": llama["decoder"]}, ["A the", "AA B", "\u00e9"]


def write_cases(path):
    cases = []
    all_models = small_models()
    for model, changes, parts, texts in small_cases():
        o = dict({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": None}, **parts)
        t = Tokenizer.from_str(json.dumps(dict(o, model=dict(all_models[model], **changes))))
        cases.append({"model": model, "changes": changes, "parts": parts,
                      "texts": [[x, t.encode(x, add_special_tokens=False).ids, t.encode(x).ids, t.decode(t.encode(x).ids, skip_special_tokens=True)] for x in texts]})
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    Path(path).write_text(f'{{"made by":"bench/against_tokenizers.py --cases","models":{json.dumps(all_models, separators=(",", ":"))},\n"cases":[\n{lines}\n]}}\n')


def run(linnet, *arguments, text=None):
    done = subprocess.run([linnet, "tokenize", *arguments], input=text, capture_output=True, timeout=600)
    if done.returncode:
        sys.exit(f"linnet tokenize {' '.join(map(str, arguments))}: {done.stderr.decode()}")
    return done.stdout


def compare(linnet, path, t, lines):
    """Differing lines, with how many texts came back."""
    wrong, back = [], 0
    text = "\n".join(lines).encode()
    for template in (False, True):
        got = [json.loads(line)["ids"] for line in run(linnet, str(path), "-", "--lines", "--json", *(["--template"] if template else []), text=text).splitlines()]
        expected = [t.encode(line, add_special_tokens=template).ids for line in lines]
        wrong += [("ids" + " with the template" * template, line, e, g) for line, e, g in zip(lines, expected, got) if e != g]
        if len(got) != len(lines):
            wrong.append(("count", len(lines), len(got), ""))
    expected = [t.encode(line, add_special_tokens=False).ids for line in lines]
    ids = "\n".join(" ".join(map(str, e)) for e in expected).encode() + b"\n"
    got = [json.loads(line)["text"] for line in run(linnet, str(path), "-", "--lines", "--json", "--decode", "--special", text=ids).splitlines()]
    same = 0
    for line, e, g in zip(lines, expected, got):
        theirs = t.decode(e, skip_special_tokens=False)
        same += theirs == g
        back += theirs == line
        if theirs == line and g != line:
            wrong.append(("text", line, theirs, g))
    return wrong, back, same


def seconds(linnet, path, text):
    """User seconds of encoding less those of starting: the least of three."""
    file = path.parent / "text.txt"
    least = [float("inf")] * 2
    for _ in range(3):
        for i, content in enumerate((text, "a")):
            file.write_text(content)
            begin = time.perf_counter()
            run(linnet, str(path), str(file), "--count")
            least[i] = min(least[i], time.perf_counter() - begin)
    return least[0] - least[1]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("linnet", nargs="?")
    a.add_argument("folder", nargs="?")
    a.add_argument("--lines", type=int, default=2000)
    a.add_argument("--time", action="store_true")
    a.add_argument("--cases", metavar="FILE", help="write tests/tokenizer_cases.json, and nothing else")
    a = a.parse_args()
    if a.cases:
        return write_cases(a.cases)
    folder = Path(a.folder or tempfile.mkdtemp(prefix="linnet-tokenizers-"))
    folder.mkdir(parents=True, exist_ok=True)
    lines, bad = text_lines(a.lines), 0
    for name, t in make(text_lines(1500, seed=2)).items():
        path = folder / f"{name}.json"
        t.save(str(path))
        wrong, back, same = compare(a.linnet, path, t, lines)
        bad += bool(wrong)
        print(f"{name:20} {len(lines)} lines: {len(wrong)} differ, {back} texts come back, {same} decoded alike", flush=True)
        for what, line, expected, got in wrong[:3]:
            print(f"    {what}: {line!r}\n      package {expected}\n      linnet  {got}")
        if a.time:
            prose = "\n".join(lines)
            ten = (prose * (10_000_000 // len(prose.encode()) + 1))
            t10, half, whole = (seconds(a.linnet, path, x) for x in (ten, "ab" * 250_000, "ab" * 500_000))
            print(f"    {len(ten.encode()) / 1e6:.1f} MB in {t10:.2f} s; a word of 0.5 MB {half:.2f} s, of 1 MB {whole:.2f} s", flush=True)
    sys.exit(1 if bad else 0)


main()
