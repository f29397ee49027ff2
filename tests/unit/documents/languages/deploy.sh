#!/bin/bash
source lib/common.sh
. "./lib/log.sh"

build() {
    compile "$1" && log "built"
}

function deploy {
    build app
    local out=$(render template)
    rsync -a out host:
}
deploy "$@"
