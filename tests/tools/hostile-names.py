"""Names with which a client may try to leave the text that it stands in, and readers of what weir writes about them.

hostile-names.py arrivals              a log in which users have these names
hostile-names.py name NUMBER           one of the names
hostile-names.py yaml KINDS FILE...    PyYAML reads each file: objects of these kinds only, or none with a kind
hostile-names.py count                 how many there are
hostile-names.py json FILE             a JSON text has all names as values, and only printable characters
hostile-names.py text FILE...          a text has only printable characters
"""

import json
import sys
import unicodedata

import yaml

NAMES = [
    "a\nb: c", "a\r\nb", "a\u0085---\u0085b: c",
    "x\u2028---\u2028{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"injected\"}}\u2028---\u2028#",
    "x\u2029---\u2029{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"injected\"}}\u2029---\u2029#",
    "\ufeffbom", "\u202ebidi\u2066", "\u0001\u0008\u000b\u000c", "\x1b[2J\x1b]0;title\x07", "\u009b2J", "del\x7f",
    "\ufffe\uffff", "\U000e0001\U0010ffff\ufdd0", "\U0001f600 e\u0301 \u4e16", "nbsp\u00a0\u3000\u200b", "\"'\\ quotes `",
    "- a: [b, {c}] # d", "---", "...", "=cmd|' /C calc'!A0", "<script>document.title='owned'</script>&amp;",
    "${{ secrets }} {{ .x }} %s %00", " ", "y", "null", "1e3", "0x10", "~", "!!python/object:os.system", "*alias", "&anchor",
    "|", ">", "@at", "%directive", "? key", ": value", "a" * 300 + "\u2028", "<<", "=",
    "*", "system:serviceaccount:ci:*", "system:serviceaccount:ci:Runner_1", "x\\u2028",
]

FLOODS = 3


def arrivals():
    """One floods, so that a level of its own is suggested; the others send a request now and then."""
    at = 0
    for number in range(3000):
        at += 5
        for n, name in enumerate(NAMES):
            if n == FLOODS or number % len(NAMES) == n:
                print(json.dumps({"at_ms": at, "method": "GET", "url": f"/api/v1/namespaces/n{n}/pods/p", "user": name,
                                  "user_agent": name, "groups": [name, "system:authenticated"],
                                  "service_ms": 400 if n == FLOODS else 20}))


def is_plain(letter):
    return letter == "\n" or unicodedata.category(letter)[0] in "LMNPS" or letter == " "


def text(files):
    for file in files:
        with open(file, encoding="utf-8", newline="") as opened:
            odd = {letter for letter in opened.read() if not is_plain(letter)}
        if odd:
            sys.exit(f"{file}: {sorted(odd)!r}")


def read_yaml(kinds, files):
    text(files)
    for file in files:
        with open(file, encoding="utf-8", newline="") as opened:
            documents = [document for document in yaml.safe_load_all(opened.read()) if document is not None]
        found = {document.get("kind") for document in documents}
        if not documents or not found <= set(kinds.split(",")) | {None}:
            sys.exit(f"{file}: {found}")


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from strings(key)
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


def read_json(file):
    text([file])
    with open(file, encoding="utf-8") as opened:
        found = set(strings(json.load(opened)))
    if not found & set(NAMES):
        sys.exit(f"{file}: none of the names")


def main():
    command, *arguments = sys.argv[1:]
    if command == "arrivals":
        arrivals()
    elif command == "yaml":
        read_yaml(arguments[0], arguments[1:])
    elif command == "json":
        read_json(*arguments)
    elif command == "text":
        text(arguments)
    elif command == "name":
        sys.stdout.write(NAMES[int(arguments[0])])
    elif command == "count":
        print(len(NAMES))
    else:
        sys.exit(__doc__)


main()
