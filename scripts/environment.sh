# Sourced by the other scripts: sets `root` and `python`, and defines `ensure_environment [EXTRA,…]`, which sets up .venv
# if it is missing, older than pyproject.toml, or lacks one of the extras. All output goes to stderr, since the stdout of
# `linckia stdio` belongs to the protocol.

root=$(cd -- "${BASH_SOURCE[0]%/*}/.." && pwd -P) || return 1
python=$root/.venv/bin/python

# The newest version for which all pinned dependencies have wheels comes first.
_candidates=(${LINCKIA_PYTHON:-} python3.13 python3.12 python3.11 python3.14 python3)

ensure_environment() {
    local extras=${1:-} a='' b='' have='' candidate name complete=1
    # The stamps list the inputs of the set-up verbatim, so nothing is hashed, and a moved checkout is noticed too.
    if [[ -x $python ]]; then
        IFS= read -rd '' a <"$root/pyproject.toml"
        IFS= read -rd '' b <"$root/scripts/constraints.txt"
        for name in '' ${extras//,/ }; do
            have=
            [[ -f $root/.venv/linckia-stamp${name:+-}$name ]] && IFS= read -rd '' have <"$root/.venv/linckia-stamp${name:+-}$name"
            [[ $have == "$root"$'\n'"$a$b" ]] || complete=
        done
        [[ $complete ]] && return 0
    fi
    for candidate in "${_candidates[@]}"; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            "$candidate" -I "$root/scripts/install.py" "$extras"
            return
        fi
    done
    {
        echo "linckia: Python 3.11 or newer is needed, and none was found (tried: ${_candidates[*]})."
        echo "Install one (Debian, Ubuntu: apt install python3 python3-venv; Fedora: dnf install python3),"
        echo "or name it: LINCKIA_PYTHON=/path/to/python3 $0"
    } >&2
    return 1
}
