#!/usr/bin/env bash
# curl (and nghttp, where curl stops too early) through weir: both versions of HTTP, every kind of
# credential, uploads and rejections.

# shellcheck source-path=SCRIPTDIR source=lib.sh
source "$(dirname "$0")/lib.sh"
need awk curl nghttp openssl

configmaps=/api/v1/namespaces/default/configmaps
json='Content-Type: application/json'
review='{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'

# whoami [ARGUMENT...]: whom the API server takes the caller for.
whoami() {
    get "$@" -H "$json" -d "$review" /apis/authentication.k8s.io/v1/selfsubjectreviews |
        sed -n 's/.*"username":"\([^"]*\)".*/\1/p'
}

# code [ARGUMENT...] PATH: the answer's code and the version of HTTP.
code() {
    get -o "$WORK/body" -w '%{http_code} %{http_version}' "$@" 2>&1
}

# map NAME BYTES: a ConfigMap of about this size.
map() {
    printf '{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s"},"data":{"a":"' "$1"
    head -c "$2" /dev/zero | tr '\0' a
    printf '"}}'
}

identities() {
    local http=$1 version=$2 user
    for user in admin alice bob; do
        check "$http: $user's certificate" "$user" \
            "$(whoami "$http" --cert "$DIR/$user.crt" --key "$DIR/$user.key")"
        check "$http: $user's token" "$user" "$(whoami "$http" -H "$(bearer "$user")")"
    done
    check "$http: a certificate and another's token are the certificate's user" alice \
        "$(whoami "$http" --cert "$DIR/alice.crt" --key "$DIR/alice.key" -H "$(bearer bob)")"
    check "$http: headers of a front proxy change nothing" bob \
        "$(whoami "$http" -H "$(bearer bob)" -H 'X-Remote-User: admin' -H 'X-Remote-Group: system:masters' \
            -H 'X_Remote_User: admin')"
    check "$http: a certificate that is not trusted and a good token" bob \
        "$(whoami "$http" --cert "$WORK/stranger.crt" --key "$WORK/stranger.key" -H "$(bearer bob)")"
    check "$http: a certificate that is not trusted, alone" "401 $version" \
        "$(code "$http" --cert "$WORK/stranger.crt" --key "$WORK/stranger.key" /api/v1/nodes)"
    check_match "$http: and the answer says why" 'weir/client-certificate' "$(<"$WORK/body")"
    check "$http: a bad token" "401 $version" "$(code "$http" -H 'Authorization: Bearer nonsense' /api/v1/nodes)"
    check "$http: nobody" "403 $version" "$(code "$http" /api/v1/nodes)"
    check_match "$http: is called system:anonymous" 'User \\"system:anonymous\\" cannot list' "$(<"$WORK/body")"
    check "$http: nobody may ask for the version" "200 $version" "$(code "$http" /version)"
}

methods() {
    local http=$1 version=$2 method
    check "$http: GET" "200 $version" "$(code "$http" -H "$(bearer alice)" /api/v1/nodes)"
    for method in OPTIONS PURGE TRACE; do
        check "$http: $method reaches the API server" "405 $version" \
            "$(code "$http" -X "$method" -H "$(bearer alice)" /api/v1/nodes)"
        check_match "$http: which says no" 'the server does not allow this method' "$(<"$WORK/body")"
    done
    check "$http: HEAD" "200 $version" "$(code "$http" -I -H "$(bearer alice)" /api/v1/nodes)"
    check "$http: HEAD of what is not there" "404 $version" \
        "$(code "$http" -I -H "$(bearer alice)" /api/v1/nodes/nowhere)"
    check "$http: HEAD that weir refuses" "401 $version" \
        "$(code "$http" -I --cert "$WORK/stranger.crt" --key "$WORK/stranger.key" /api/v1/nodes)"
    # On HTTP/2 the library itself refuses it, by a reset.
    check_match "$http: a raw character that Go takes and weir does not" "^400 1.1$|PROTOCOL_ERROR" \
        "$(code "$http" -H "$(bearer alice)" '/api/v1/nodes?a=<')"
}

uploads() {
    local http=$1 version=$2 name
    name=map-${version%.*}
    map "$name" 900000 >"$WORK/map"
    check "$http: an upload of 900 kB" "201 $version" \
        "$(code "$http" -H "$(bearer alice)" -H "$json" --data-binary "@$WORK/map" "$configmaps")"
    get "$http" -H "$(bearer alice)" "$configmaps/$name" >"$WORK/got"
    check "$http: all of it is there" 900000 "$(tr -cd a <"$WORK/got" | wc -c | awk '{print int($1 / 1000) * 1000}')"
    map "$name-chunked" 100000 >"$WORK/map"
    check "$http: an upload of unknown length" "201 $version" \
        "$(code "$http" -X POST -H "$(bearer alice)" -H "$json" -T - "$configmaps" <"$WORK/map")"
}

large_lists() {
    local http=$1
    get "$http" -H "$(bearer alice)" /api/v1/pods >"$WORK/list"
    check "$http: a list of 2000 pods" 2000 "$(grep -o '"nodeName":' "$WORK/list" | wc -l)"
}

# answers FILE: the codes of the answers, from what curl -v wrote there.
answers() {
    sed -n 's/^< HTTP\/1.1 \([0-9]*\).*/\1/p' "$1" | tr '\n' ' '
}

expectations() {
    map expected 50000 >"$WORK/map"
    get --http1.1 -v -H "$(bearer alice)" -H "$json" -H 'Expect: 100-continue' --data-binary "@$WORK/map" \
        "$configmaps" >"$WORK/body" 2>"$WORK/head"
    check "Expect: 100-continue is answered, and then the upload" '100 201 ' "$(answers "$WORK/head")"

    # An upload that never ends takes the only place.
    mkfifo "$WORK/endless"
    exec 5<>"$WORK/endless"
    start holder curl -sS -v --max-time 60 --cacert "$DIR/ca.crt" --http1.1 -X POST -H "$(bearer bob)" -H "$json" \
        -H 'Expect: 100-continue' -T "$WORK/endless" "$URL$configmaps"
    within "$LIMIT" grep -q '100 Continue' "$WORK/holder.err" || die 'the holder was not admitted'
    get --http1.1 -v -H "$(bearer alice)" -H "$json" -H 'Expect: 100-continue' --data-binary "@$WORK/map" \
        "$configmaps" >"$WORK/body" 2>"$WORK/head"
    check 'an upload that is refused is never asked for' '429 ' "$(answers "$WORK/head")"
    check_match 'the refusal names its limit' 'weir/max-mutating-requests-inflight' "$(<"$WORK/body")"
    check_match 'and when to come back' 'retry-after: 1' "$(tr '[:upper:]' '[:lower:]' <"$WORK/head")"
    check 'HTTP/2: refused likewise' '429 2' \
        "$(code --http2 -H "$(bearer alice)" -H "$json" --data-binary "@$WORK/map" "$configmaps")"
    check 'protobuf is for those who take nothing else' 'application/vnd.kubernetes.protobuf' \
        "$(get -o "$WORK/body" -w '%{content_type}' -H "$(bearer alice)" -H "$json" -d '{}' \
            -H 'Accept: application/vnd.kubernetes.protobuf' "$configmaps")"
    check 'its first bytes are k8s and a zero' '6b387300' "$(head -c 4 "$WORK/body" | od -An -tx1 | tr -d ' ')"
    check 'reading goes on' '200 2' "$(code --http2 -H "$(bearer alice)" /api/v1/nodes)"
    check 'system:masters is never refused' '201 1.1' \
        "$(code --http1.1 -H "$(bearer admin)" -H "$json" --data-binary "@$WORK/map" /api/v1/namespaces/kube-system/configmaps)"
    signal holder TERM
    finish holder
    exec 5>&-
    # shellcheck disable=SC2317,SC2329 # called by `within`
    admitted() {
        map again 10 >"$WORK/map"
        [[ $(code --http1.1 -H "$(bearer alice)" -H "$json" --data-binary "@$WORK/map" "$configmaps") == 201* ]]
    }
    check_ok 'the place comes free with its holder' within "$LIMIT" admitted
}

too_large() {
    head -c 4000000 /dev/zero | tr '\0' a >"$WORK/large"
    check 'HTTP/1.1: 4 MB are too large for the API server' '413 1.1' \
        "$(code --http1.1 -H "$(bearer alice)" -H "$json" --data-binary "@$WORK/large" "$configmaps")"
    check_match 'HTTP/1.1: which says so' 'Request entity too large' "$(<"$WORK/body")"
    # This curl reports the reset that follows the answer, and not the answer.
    nghttp -v -d "$WORK/large" -H "$(bearer alice)" -H "$json" "$URL$configmaps" >"$WORK/body" 2>&1 || true
    check_match 'HTTP/2: 4 MB are too large for the API server' ':status: 413' "$(tr -cd '[:print:]\n' <"$WORK/body")"
}

playground play --pods 2000 --enable-priority-and-fairness=false --max-mutating-requests-inflight 1
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 1 -subj '/O=system:masters/CN=admin' \
    -addext basicConstraints=critical,CA:FALSE -keyout "$WORK/stranger.key" -out "$WORK/stranger.crt" 2>/dev/null
for version in 1.1 2; do
    identities "--http$version" "$version"
    methods "--http$version" "$version"
    uploads "--http$version" "$version"
    large_lists "--http$version"
done
expectations
too_large
stopped play
summary
