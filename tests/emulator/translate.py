#!/usr/bin/env python3
"""A .cu file as C++ that emulator.h makes sense of: translate.py FILE.cu OUT.cpp COMPILER FLAG...

The preprocessor goes first; then, in what is the project's own, PTX becomes calls of its interpreter, launches become calls, and shared memory becomes
what all fibers of a thread of the host share. Lines keep their numbers."""
import re
import subprocess
import sys


def closing(text, at, pair="()"):
    """The place behind the bracket that closes the one at `at`; strings and characters are skipped."""
    depth, i = 0, at
    while i < len(text):
        c = text[i]
        if c in "\"'":
            i = re.compile(r'"(?:[^"\\]|\\.)*"' if c == '"' else r"'(?:[^'\\]|\\.)*'").match(text, i).end()
            continue
        depth += (c == pair[0]) - (c == pair[1])
        i += 1
        if not depth:
            return i
    raise ValueError("unclosed " + text[at:at + 60])


def split(text, mark):
    """At each `mark` outside brackets and strings."""
    parts, begin, i = [], 0, 0
    while i < len(text):
        if text[i] in "([{":
            i = closing(text, i, {"(": "()", "[": "[]", "{": "{}"}[text[i]])
        elif text[i] in "\"'":
            i = re.compile(r'"(?:[^"\\]|\\.)*"' if text[i] == '"' else r"'(?:[^'\\]|\\.)*'").match(text, i).end()
        elif text[i] == mark:
            parts.append(text[begin:i])
            begin = i = i + 1
        else:
            i += 1
    return parts + [text[begin:]]


def interpreted(inside):
    """asm's parentheses as a call."""
    text, *lists = [x.strip() for x in split(inside, ":")]
    if re.fullmatch(r'(""\s*)+', text):
        return "((void)0)"
    operands = []
    for word, given in zip(("out", "in"), lists):
        for one in filter(str.strip, split(given, ",")):
            constraint, expression = re.fullmatch(r'\s*("[^"]*")\s*\((.*)\)\s*', one, re.S).groups()
            operands.append(f"emu::{word}({constraint}, ({expression}))")
    return f"do {{ emu::operand emu_o[] = {{{', '.join(operands) or '{}'}}}; static const emu::ptx emu_p({text}); emu_p.run(emu_o); }} while (0)"


def launched(text):
    while (at := text.find("<<<")) >= 0:
        begin = at
        while text[begin - 1].isspace():
            begin -= 1
        if text[begin - 1] == ">":
            depth = 0
            while True:
                begin -= 1
                depth += (text[begin] == ">") - (text[begin] == "<")
                if not depth:
                    break
        while re.match(r"[\w:]", text[begin - 1]):
            begin -= 1
        i, end = at + 3, None
        while text[i:i + 3] != ">>>":
            i = closing(text, i) if text[i] == "(" else i + 1
        given = i + 3
        while text[given] != "(":
            given += 1
        end = closing(text, given)
        arguments = text[given + 1:end - 1]
        text = text[:begin] + f"emu::launch(emu::config({text[at + 3:i]}), {text[begin:at]}{',' if arguments.strip() else ''} {arguments})" + text[end:]
    return text


def own(text):
    out, i = [], 0
    for found in re.finditer(r"\basm\b\s*(?:volatile)?\s*\(", text):
        if found.start() < i:
            continue
        end = closing(text, found.end() - 1)
        out += [text[i:found.start()], interpreted(re.sub(r"^# .*$", "", text[found.end():end - 1], flags=re.M))]
        i = end
    text = launched("".join(out) + text[i:])
    text = re.sub(r"extern\s+EMU_SHARED\s+(?:__attribute__\s*\(\(aligned\(\w+\)\)\)\s*)?([\w:]+(?:\s+[\w:]+)*)\s+(\w+)\[\]\s*;", r"\1 *const \2 = (\1 *)emu::dynamic;", text)
    text = re.sub(r"\(const void \*\)\s*([A-Za-z]\w*(?:<[^<>;()]*>)?)(?![\w(.\[<]|->)", r"emu::address(\1)", text)
    for name, member in (("threadIdx", "thread"), ("blockIdx", "block"), ("blockDim", "threads"), ("gridDim", "blocks")):
        text = re.sub(rf"(?<![.\w>]){name}\b", f"emu::at.{member}", text)
    return text.replace("EMU_SHARED", "static thread_local")


def main():
    source, target, *compiler = sys.argv[1:]
    text = subprocess.run([*compiler, "-E", "-x", "c++", source], check=True, capture_output=True, text=True).stdout
    parts, mine, theirs = [], [], []
    ours = False

    def flush():
        if mine:
            parts.append(own("".join(mine)))
        parts.extend(theirs)
        mine.clear()
        theirs.clear()

    for line in text.splitlines(keepends=True):
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            now = "/src/" in marker.group(1) and not marker.group(1).startswith("/usr/")
            if now != ours:
                flush()
                ours = now
        (mine if ours else theirs).append(line)
    flush()
    with open(target, "w") as f:
        f.write("".join(parts))


if __name__ == "__main__":
    main()
