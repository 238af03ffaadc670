#!/usr/bin/env python3
"""Man pages and completion for bash, zsh and fish, from the commands' own tables of flags: python3 cmake/cli_pages.py BUILD/linnet FOLDER

FOLDER becomes what share/ is below a prefix. A command says what it has by --help=json."""
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

FILES, FOLDERS, NOTHING = "@files", "@folders", "@nothing"  # what a value is, where it is no list of words


def ask(linnet, *words):
    return [json.loads(line) for line in subprocess.run([linnet, *words], capture_output=True, text=True, check=True).stdout.splitlines()]


def commands_of(linnet):
    """Every command with its flags, its parts behind it: [{command, summary, usage, about, example, flags, parts}]."""
    found = []
    for c in ask(linnet, "--help=json"):
        parts = [p["name"] for p in c["parts"]]
        found.append({**ask(linnet, c["command"], "--help=json")[0], "parts": parts})
        found += [{**ask(linnet, c["command"], p, "--help=json")[0], "parts": []} for p in parts]
    return found


class Values:
    """What can stand behind a flag."""

    def __init__(self, linnet):
        kinds = ask(linnet, "mixers", "--json")
        self.named = {"mixer": [k["mixer"] for k in kinds if "mixer" in k], "preset": [k["preset"] for k in kinds if "preset" in k]}

    def of(self, flag):
        value = flag["value"] or ""
        if flag["flag"] in self.named:
            return self.named[flag["flag"]]
        if flag["kind"] == "dtype":
            return ["f32", "bf16"] + [t for t in ("f64", "int8") if t in flag["help"]]
        if flag["kind"] == "switch word":
            return value.strip("[]").split("|")
        if re.fullmatch(r"[\w-]+(\|[\w-]+)+", value):
            return value.split("|")
        return FOLDERS if value == "DIR" else FILES if value in ("FILE", "PATH", "TEXT", "MODEL") else NOTHING

    def of_words(self, command):
        return self.named["mixer"] if command == "mixers" else FILES


# ---- man pages -------------------------------------------------------------------------------------------------------------------

def roff(text):
    """Text that troff shows as it is."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga").replace("'", "\\(aq").replace("^", "\\(ha").replace("~", "\\(ti")
    return re.sub(r"^\.", "\\&.", text, flags=re.M)


def page_name(command):
    return "linnet-" + command.replace(" ", "-") if command else "linnet"


def head(command, summary, version):
    name = page_name(command)
    return [f'.TH "{name.upper()}" 1 "" "linnet {version}" "linnet"', ".SH NAME", f"{roff(name)} \\- {roff(summary)}", ".SH SYNOPSIS"]


END = [".SH EXIT STATUS", "0: done.  2: the command, a file or the machine is not what it must be; the message says what and what to do.", "3: a mistake in linnet.",
       "130: stopped by Ctrl\\-C; what was promised to be saved is saved.", ".SH ENVIRONMENT", ".TP", ".B LINNET_CPU",
       "base, avx2, avx512 or amx: the best instructions that kernels may use.", ".TP", ".B LINNET_VERBOSE",
       "dispatch: say which implementation ran, and why others did not.", ".TP", ".B OMP_NUM_THREADS", "threads, where \\-\\-threads says nothing."]


def flag_page(flag):
    value = flag["value"] or ""
    where = [f"default {flag['default']}"] if flag["default"] not in ("", None) else []
    if "least" in flag:
        where.append(f"{flag['least']:.12g} to {flag['most']:.12g}" if "most" in flag else f"at least {flag['least']:.12g}")
    return [".TP", f"\\fB\\-\\-{roff(flag['flag'])}\\fR" + (f" \\fI{roff(value)}\\fR" if value else ""),
            roff(flag["help"] + (f" ({'; '.join(where)})" if where else ""))]


def man_page(c, version):
    lines = head(c["command"], c["summary"], version) + [f".B linnet {roff(c['command'])}", roff(c["usage"]), ".SH DESCRIPTION"]
    lines += [x for p in (c["about"] or c["summary"][0].upper() + c["summary"][1:] + ".").split("\n") for x in (".PP", roff(p))]
    lines.append(".SH OPTIONS")
    heading = None
    for f in c["flags"]:
        if f["heading"] != heading:
            heading = f["heading"]
            lines.append(f".SS {roff(heading[0].upper() + heading[1:])}" if heading else ".SS Options")
        lines += flag_page(f)
    lines += [".TP", "\\fB\\-\\-help\\fR", "show usage, flags and an example"]
    lines += [".SH EXAMPLES", ".EX", *(roff(x) for x in c["example"].split("\n")), ".EE", *END, ".SH SEE ALSO"]
    return "\n".join(lines + [", ".join(f"\\fB{roff(page_name(p))}\\fR(1)" for p in see_also(c))]) + "\n"


def see_also(c):
    first = c["command"].split()[0]
    return ["", *(f"{first} {p}" for p in c["parts"])] if c["parts"] else [""] if c["command"] == first else ["", first]


def overview(commands, version):
    whole = [c for c in commands if " " not in c["command"]]
    lines = head("", "linear-time sequence models, trained, evaluated and run", version) + [".B linnet", roff("COMMAND [arguments]"), ".SH COMMANDS"]
    for c in whole:
        lines += [".TP", f"\\fB{roff(page_name(c['command']))}\\fR(1)", roff(c["summary"])]
    return "\n".join(lines + [".TP", "\\fB\\-\\-version\\fR", "the version", *END]) + "\n"


# ---- completion -------------------------------------------------------------------------------------------------------------------

def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def bash(commands, values):
    whole = [c for c in commands if " " not in c["command"]]
    lines = ["# Completion for linnet in bash; made by cmake/cli_pages.py.", "_linnet()", "{",
             "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} at=${COMP_WORDS[1]} first=2 flags= values=",
             "    COMPREPLY=()",
             "    if [ \"$cur\" = = ]; then cur=; elif [ \"$prev\" = = ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi",
             "    if ((COMP_CWORD == 1)); then",
             f"        COMPREPLY=($(compgen -W '{' '.join(c['command'] for c in whole)} help --help --version' -- \"$cur\"))", "        return", "    fi",
             "    case $at in"]
    for c in whole:
        if c["parts"]:
            lines += [f"    {c['command']})", "        if ((COMP_CWORD == 2)); then",
                      f"            COMPREPLY=($(compgen -W '{' '.join(c['parts'])} --help' -- \"$cur\"))", "            return", "        fi",
                      "        at=\"$at ${COMP_WORDS[2]}\" first=3", "        ;;"]
    lines += ["    help)", f"        COMPREPLY=($(compgen -W '{' '.join(c['command'] for c in whole)}' -- \"$cur\"))", "        return", "        ;;", "    esac",
              "    case $at in"]
    for c in commands:
        lines.append(f"    {quoted(c['command'])}) flags={quoted(' '.join('--' + f['flag'] for f in c['flags']) + ' --help')}"
                     f" values={quoted(words(values.of_words(c['command'])))} ;;")
    lines += ["    *) return ;;", "    esac", "    case \"$at $prev\" in"]
    for c in commands:
        for f in c["flags"]:
            if f["kind"] != "switch":
                lines.append(f"    {quoted(c['command'] + ' --' + f['flag'])}) values={quoted(words(values.of(f)))} ;;")
    lines += ["    *) [[ $cur == -* ]] && values=$flags ;;", "    esac", "    case $values in",
              f"    {FILES}) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -f -- \"$cur\")) ;;",
              f"    {FOLDERS}) compopt -o filenames 2>/dev/null; COMPREPLY=($(compgen -d -- \"$cur\")) ;;", f"    {NOTHING}) ;;",
              "    *) COMPREPLY=($(compgen -W \"$values\" -- \"$cur\")) ;;", "    esac", "}", "complete -F _linnet linnet"]
    return "\n".join(lines) + "\n"


def words(value):
    return value if isinstance(value, str) else " ".join(value)


def zsh_text(text):
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


def zsh_action(value):
    return {FILES: "_files", FOLDERS: "_files -/", NOTHING: " "}[value] if isinstance(value, str) else f"({' '.join(value)})"


def zsh_flag(f, values):
    many = "*" if f["kind"] == "list" else ""
    if f["kind"] == "switch":
        return f"{many}--{f['flag']}[{zsh_text(f['help'])}]"
    optional = ":" if f["kind"] == "switch word" else ""
    return f"{many}--{f['flag']}=[{zsh_text(f['help'])}]{optional}:{zsh_text((f['value'] or '').strip('[]'))}:{zsh_action(values.of(f))}"


def zsh(commands, values):
    def described(pairs):
        return " ".join(quoted(f"{name}:{text}".replace("`", "")) for name, text in pairs)
    whole = [c for c in commands if " " not in c["command"]]
    about = {c["command"]: c["summary"] for c in commands}
    lines = ["#compdef linnet", "# Completion for linnet in zsh; made by cmake/cli_pages.py.", "_linnet() {", "  local at=${words[2]}", "  local -a names",
             "  if (( CURRENT == 2 )); then", f"    names=({described((c['command'], c['summary']) for c in whole)})", "    _describe command names", "    return",
             "  fi", "  shift words", "  (( CURRENT-- ))", "  case $at in"]
    for c in whole:
        if c["parts"]:
            named = described((p, about[f"{c['command']} {p}"]) for p in c["parts"])
            lines += [f"  {c['command']})", "    if (( CURRENT == 2 )); then", f"      names=({named})", "      _describe part names", "      return", "    fi",
                      "    at=\"$at ${words[2]}\"", "    shift words", "    (( CURRENT-- ))", "    ;;"]
    lines += ["  esac", "  case $at in"]
    for c in commands:
        rest = zsh_action(values.of_words(c["command"]))
        flags = " ".join(quoted(zsh_flag(f, values)) for f in c["flags"])
        lines += [f"  {quoted(c['command'])})", f"    _arguments {flags} '--help[show usage, flags and an example]' {quoted('*:word:' + rest)}", "    ;;"]
    lines += ["  esac", "}", "_linnet \"$@\""]
    return "\n".join(lines) + "\n"


def fish(commands, values):
    lines = ["# Completion for linnet in fish; made by cmake/cli_pages.py.", "function __linnet_at", "    set -l words (commandline -opc)", "    set -e words[1]",
             "    for i in (seq (count $argv))", "        test \"$words[$i]\" = \"$argv[$i]\"; or return 1", "    end", "    true", "end",
             "complete -c linnet -n 'test (count (commandline -opc)) -eq 1' -f -l version -d 'the version'"]
    for c in commands:
        at = f"-n '__linnet_at {c['command']}'"
        if " " not in c["command"]:
            lines.append(f"complete -c linnet -n 'test (count (commandline -opc)) -eq 1' -f -a {c['command']} -d {fish_text(c['summary'])}")
        else:
            first, part = c["command"].split()
            lines.append(f"complete -c linnet -n '__linnet_at {first}; and test (count (commandline -opc)) -eq 2' -f -a {part} -d {fish_text(c['summary'])}")
        for f in c["flags"]:
            value = values.of(f)
            what = "" if f["kind"] in ("switch", "switch word") else " -r -F" if value == FILES else " -x -a '(__fish_complete_directories)'" \
                if value == FOLDERS else " -x" if value == NOTHING else f" -x -a '{' '.join(value)}'"
            lines.append(f"complete -c linnet {at} -l {f['flag']}{what} -d {fish_text(f['help'])}")
        if values.of_words(c["command"]) != FILES:
            lines.append(f"complete -c linnet {at} -f -a '{' '.join(values.of_words(c['command']))}'")
    return "\n".join(lines) + "\n"


def fish_text(text):
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


# ---- all of it ---------------------------------------------------------------------------------------------------------------------

def main():
    linnet, out = str(Path(sys.argv[1]).resolve()), Path(sys.argv[2])
    version = subprocess.run([linnet, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    commands, values = commands_of(linnet), Values(linnet)
    shutil.rmtree(out, ignore_errors=True)
    pages = {f"man/man1/{page_name(c['command'])}.1": man_page(c, version) for c in commands}
    pages["man/man1/linnet.1"] = overview(commands, version)
    pages["bash-completion/completions/linnet"] = bash(commands, values)
    pages["zsh/site-functions/_linnet"] = zsh(commands, values)
    pages["fish/vendor_completions.d/linnet.fish"] = fish(commands, values)
    for name, text in pages.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)


if __name__ == "__main__":
    main()
