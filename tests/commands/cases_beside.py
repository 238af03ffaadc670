"""What train leaves beside a checkpoint when asked: event files for TensorBoard, the best checkpoint."""
import json
import signal
import struct

from cases_models import SMALL, text_file, wait_for_step
from harness import case, files_below, linnet, start


def masked_crc(data):
    """CRC-32C, masked as the record format does."""
    c = 0xFFFFFFFF
    for byte in data:
        c ^= byte
        for _ in range(8):
            c = c >> 1 ^ (0x82F63B78 if c & 1 else 0)
    c ^= 0xFFFFFFFF
    return ((c >> 15 | c << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """(number, value) of a protocol buffer: ints, floats by their width, bytes."""
    at, out = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        elif kind == 1:
            value, at = struct.unpack_from("<d", data, at)[0], at + 8
        elif kind == 5:
            value, at = struct.unpack_from("<f", data, at)[0], at + 4
        else:
            n = varint()
            value, at = data[at:at + n], at + n
        out.append((key >> 3, value))
    return out


def events(path):
    """[(step, {tag: value}, other fields)] of an event file whose checksums are right."""
    data, at, out = path.read_bytes(), 0, []
    while at < len(data):
        size, crc = struct.unpack_from("<QI", data, at)
        body = data[at + 12:at + 12 + size]
        assert crc == masked_crc(data[at:at + 8]) and struct.unpack_from("<I", data, at + 12 + size)[0] == masked_crc(body)
        event = fields(body)
        values = {}
        for _, summary in (f for f in event if f[0] == 5):
            for _, value in fields(summary):
                tag, number = (v for _, v in fields(value))
                values[tag.decode()] = number
        out.append((dict(event).get(2, 0), values, {k: v for k, v in event if k not in (2, 5)}))
        at += 16 + size
    return out


@case("train --tensorboard writes what log.jsonl has; a resumed run says from where it goes on; --keep-best keeps the best checkpoint")
def beside(folder):
    out = folder / "model"
    flags = [f for f in SMALL]
    for name, value in (("--eval-every", "2"), ("--save-every", "2"), ("--steps", "6")):
        if name in flags:
            flags[flags.index(name) + 1] = value
        else:
            flags += [name, value]
    linnet("train", text_file(), "--out", out, *flags, "--tensorboard", "--keep-best", "--json")
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    [path] = (out / "tensorboard").iterdir()
    got = events(path)
    assert path.name.startswith("events.out.tfevents.") and got[0][2][3] == b"brain.Event:2"
    assert [step for step, _, _ in got[1:]] == [line["step"] for line in log] == list(range(1, 7))
    for line, (_, values, _) in zip(log, got[1:]):
        for tag, key in (("loss", "loss"), ("learning_rate", "learning_rate"), ("gradient_norm", "gradient_norm"), ("held_out/loss", "eval_loss")):
            assert (tag in values) == (key in line)
            if key in line:
                assert abs(values[tag] - line[key]) <= 1e-6 * abs(line[key]), (tag, values, line)
    best = json.loads((out / "best" / "best.json").read_text())
    least = min((line for line in log if "eval_loss" in line), key=lambda line: line["eval_loss"])
    assert best["step"] == least["step"] and abs(best["eval_loss"] - least["eval_loss"]) < 1e-6
    shown = json.loads(linnet("eval", out / "best", text_file(), "--max-tokens", "2000", "--json").out)
    assert shown["tokens"] > 0
    assert {p.name for p in (out / "best").iterdir()} == {"best.json", "config.json", "model.safetensors", "tokenizer.json"}
    # the last one is the best here: it has two names, until a later save gives the first to another file
    assert (out / "best" / "model.safetensors").samefile(out / "model.safetensors") == (best["step"] == 6)
    names = files_below(out)
    linnet("train", text_file(), "--out", out, "--resume", "--tensorboard", "--keep-best")  # nothing is left to do
    assert files_below(out) == names
    # longer, without a word of either: both go on, and the better checkpoint is the best
    linnet("train", text_file(), "--out", out, "--resume", "--steps", "40")
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    longer = min((line for line in log if "eval_loss" in line), key=lambda line: line["eval_loss"])
    assert longer["step"] > 6 and json.loads((out / "best" / "best.json").read_text())["step"] == longer["step"], longer
    assert len(list((out / "tensorboard").iterdir())) == 2
    plain = folder / "plain"
    linnet("train", text_file(), "--out", plain, *flags)
    linnet("train", text_file(), "--out", plain, "--resume", "--steps", "8")
    assert not (plain / "best").exists() and not (plain / "tensorboard").exists()
    # a run that is stopped in the middle and goes on
    part = folder / "part"
    flags[flags.index("--steps") + 1] = "400"
    p = start("train", text_file(), "--out", part, *flags, "--tensorboard", "--json")
    wait_for_step(p, 3)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    kept = json.loads((part / "log.jsonl").read_text().splitlines()[-1])["step"]
    assert 3 <= kept < 400
    first = {p.name for p in (part / "tensorboard").iterdir()}
    p = start("train", text_file(), "--out", part, "--resume", "--tensorboard", "--json")
    wait_for_step(p, kept + 3)
    p.send_signal(signal.SIGINT)
    p.communicate(timeout=60)
    [second] = [p for p in (part / "tensorboard").iterdir() if p.name not in first]
    got = events(second)
    assert [(step, other[7]) for step, _, other in got if 7 in other] == [(kept + 1, b"\x08\x01")]
    assert [step for step, values, _ in got if values][0] == kept + 1
