#!/bin/sh
# Zig for deploy/release.sh. When it links, Zig compiles its own start files and unwinder, and their debug information names
# the working directory. It is the same everywhere, so that two checkouts make the same bytes. What is compiled by file names
# that are relative stays where it is.
case $1 in
cc | c++)
    compiles=
    for argument; do
        case $argument in -c | -E | -S) compiles=1 ;; esac
    done
    if [ -z "$compiles" ]; then cd /; fi
    ;;
esac
if command -v zig >/dev/null; then exec zig "$@"; fi
exec python3 -m ziglang "$@"
