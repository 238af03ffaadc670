"""linnet tokenize."""
import json
from pathlib import Path

from harness import case, linnet, refused

CASES = json.loads((Path(__file__).resolve().parent.parent / "tokenizer_cases.json").read_text())


def write_file(folder, k):
    """tokenizer.json of one of the tests' cases."""
    path = Path(folder) / "tokenizer.json"
    path.write_text(json.dumps(dict(k["parts"], model=dict(CASES["models"][k["model"]], **k["changes"]))))
    return path


@case("linnet tokenize: ids, pieces, counts, JSON, lines, the template, and back to the text")
def tokenize(folder):
    k = next(k for k in CASES["cases"] if k["model"] == "characters" and "post_processor" in k["parts"])
    write_file(folder, k)
    lines = [row for row in k["texts"] if "\n" not in row[0] and row[0]]
    for text, ids, with_template, back in lines:
        assert linnet("tokenize", folder, "--text", text).out == " ".join(map(str, ids)) + "\n"
        got = json.loads(linnet("tokenize", folder, "--text", text, "--template", "--json").out)
        assert got == {"bytes": len(text.encode()), "tokens": len(with_template), "ids": with_template}, got
        pieces = [json.loads(line)["id"] for line in linnet("tokenize", folder, "--text", text, "--pieces").out.splitlines()]
        assert pieces == ids
        assert linnet("tokenize", folder, "--decode", "--text", json.dumps(with_template)).out == back
    file = Path(folder) / "text.txt"
    file.write_text("".join(row[0] + "\n" for row in lines))
    got = [json.loads(line)["ids"] for line in linnet("tokenize", folder, file, "--lines", "--json").out.splitlines()]
    assert got == [row[1] for row in lines]
    counts = json.loads(linnet("tokenize", folder, file, "--lines", "--count", "--json").out)
    assert counts == {"bytes": sum(len(row[0].encode()) for row in lines), "tokens": sum(map(len, got)), "vocabulary": len(CASES["models"]["characters"]["vocab"])}
    special = linnet("tokenize", folder, "--decode", "--special", "--text", "1 2").out
    assert special == "<s></s>" and linnet("tokenize", folder, "--decode", "--text", "1,2").out == ""
    assert json.loads(linnet("tokenize", folder, "--text", "<s>", "--plain", "--json").out)["tokens"] > 1
    assert linnet("tokenize", "bytes", "--text", "a\u00e9").out == "97 195 169\n"


@case("linnet tokenize says what is wrong: no id, an id of another vocabulary, two inputs, a file that is none")
def tokenize_refuses(folder):
    refused("tokenize", "bytes", "--decode", "--text", "1 two 3", says=['"two" is no id'])
    refused("tokenize", "bytes", "--decode", "--text", "256", says=["id 256 is not of this tokenizer", "255"])
    refused("tokenize", "bytes", "file", "--text", "x", says=["two inputs"])
    refused("tokenize", "bytes", "--text", "x", "--special", says=["--decode"])
    refused("tokenize", "bytes", "--text", "1", "--decode", "--pieces", says=["--pieces"])
    refused("tokenize", "bytes", Path(folder) / "nothing", says=["cannot open"])
    for more in ([], ["--decode"], ["--lines"]):
        refused("tokenize", "bytes", folder, *more, says=["cannot read"])
    refused("tokenize", "bytes", "--decode", "--text", "7 " + 64 * "x", says=[60 * "x"])
    (Path(folder) / "tokenizer.json").write_text('{"model":{"type":"WordPiece","vocab":{}}}')
    refused("tokenize", folder, "--text", "x", says=["model WordPiece is not offered", "BPE or Unigram"])
