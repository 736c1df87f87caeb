#!/bin/sh
# Walks every route of the API with curl and checks status and body of each answer.
#
#     examples/api-test.sh HOST PORT
#
# A line for every call, a summary, exit 1 if an answer was wrong. Its topics have names of their own and are deleted at
# the end, with everything that belongs to them.

usage() {
    echo "usage: $0 HOST PORT" >&2
    exit 2
}

[ $# -eq 2 ] && [ -n "$1" ] || usage
case $2 in '' | *[!0-9]*) usage ;; esac
command -v curl >/dev/null || {
    echo "$0: curl is missing: install it" >&2
    exit 2
}

base=http://$1:$2
topic=api-test-$$-$(date +%s)
other=$topic-other
topic_id='' partition_id=0 producer_id='' consumer_id='' broker_id='' token='' grant=''
calls=0 wrong=0
work=$(mktemp -d) || exit 2

clean_up() {
    for name in "$topic" "$other"; do
        curl -s -o "$work/body" --max-time 10 -X DELETE "$base/v1/topics/$name"
    done
    rm -r "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# {name} stands for the variable of that name.
fill() {
    printf '%s' "$1" | sed -e "s|{topic}|$topic|g" -e "s|{other}|$other|g" -e "s|{topic_id}|$topic_id|g" \
        -e "s|{partition_id}|$partition_id|g" -e "s|{producer_id}|$producer_id|g" \
        -e "s|{range}|0-1|g" -e "s|{consumer_id}|$consumer_id|g" -e "s|{broker_id}|$broker_id|g"
}

# call METHOD ROUTE STATUS TEXTS [option of curl ...]: TEXTS, divided by |, must all be in the body.
call() {
    method=$1 route=$2 status=$3 texts=$4
    shift 4
    calls=$((calls + 1))
    : >"$work/body" # an answer without a body leaves the file alone
    # With the token of the last write, a read sees that write at every read manager.
    code=$(curl -s -o "$work/body" -D "$work/headers" -w '%{http_code}' --max-time 30 \
        -X "$method" -H "X-Myqueue-Token: $token" "$@" "$base$(fill "$route")")
    reached=$?
    # Some answers have blanks between their fields, some have none.
    LC_ALL=C sed -e 's/": /":/g' -e 's/, "/,"/g' "$work/body" >"$work/text" 2>/dev/null
    problem=
    if [ $reached -ne 0 ] && [ $reached -ne "${ends_with:-0}" ]; then
        problem="no answer from $base (curl ends with $reached)"
    elif [ "$code" != "$status" ]; then
        problem="$code instead of $status"
    else
        rest=$(fill "$texts")
        while [ -n "$rest" ]; do
            text=${rest%%|*}
            case $rest in *'|'*) rest=${rest#*|} ;; *) rest= ;; esac
            LC_ALL=C grep -aqF -e "$text" "$work/text" || problem="$code as expected, but without $text"
        done
    fi
    if [ -z "$problem" ]; then
        printf 'ok     %-6s %s  %s\n' "$method" "${route%%\?*}" "$code"
        new=$(tr -d '\r' <"$work/headers" | sed -n 's/^[Xx]-[Mm]yqueue-[Tt]oken: //p')
        token=${new:-$token}
    else
        wrong=$((wrong + 1))
        printf 'WRONG  %-6s %s  %s\n' "$method" "${route%%\?*}" "$problem"
        LC_ALL=C head -c 400 "$work/text" | LC_ALL=C tr -c '[:print:]\n' '?' | sed 's/^/           /'
        echo
    fi
}

# send METHOD ROUTE STATUS TEXTS JSON [option of curl ...]
send() {
    body=$(fill "$5")
    send_method=$1 send_route=$2 send_status=$3 send_texts=$4
    shift 5
    call "$send_method" "$send_route" "$send_status" "$send_texts" \
        -H 'Content-Type: application/json' --data-binary "$body" "$@"
}

# The value of a field of the last answer.
field() {
    sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' "$work/text"
}

done_well='"status":"success"'
grant_header() { printf 'X-Myqueue-Grant: %s' "$1"; }

# readiness
call GET /healthz 200 "$done_well"
if [ "$wrong" -gt 0 ]; then
    echo "$base does not answer as myqueue does; nothing more was tried"
    exit 1
fi
call GET /readyz 200 "$done_well|"'"checks":'
call GET /metrics 200 '# TYPE myqueue_up gauge'
call GET /metrics/cluster 200 'role="broker"|role="read_manager"|role="write_manager"'
call GET /v1/lag 200 "$done_well|"'"consumers":['
call GET /openapi.json 200 '"openapi":"3.1|"/producer/produce"'
call GET /docs 200 '<html'
call GET / 200 '<html' -H 'Accept: text/html'
call GET /v1/cluster 200 "$done_well|"'"brokers":[|"read_managers":[|"write_manager":'
call GET /v1/cluster/overview 200 "$done_well|"'"processes":[|"alerts":['
ends_with=28 # of curl: the time is up; a stream has no end of its own
call GET /v1/cluster/events 200 'event: overview|"processes":[' --max-time 3
ends_with=0

# topics
send POST /topics 201 "$done_well|"'"partitions":[0]' '{"name":"{topic}","partitions":1}'
send POST /topics 409 '"error_code":40901|topic already exists!' '{"name":"{topic}","partitions":1}'
send POST /topics 400 '"error_code":40001|"outcome":"not_written"' '{"name":"no blanks"}'
call GET /topics 200 "$done_well|"'"{topic}"'
call GET '/topics/{topic}/partitions' 200 "$done_well|"'"partition_id":0|"leader":|"end_offset":0'
call GET '/topics/{other}/partitions' 404 '"error_code":40401|topic not found'
send PUT '/v1/topics/{topic}' 200 "$done_well|"'"topic":"{topic}"|"partitions":1' '{"partitions":1}'
send PUT '/v1/topics/{topic}' 409 '"status":"failure"' '{"partitions":2}'
send PATCH '/v1/topics/{topic}' 200 "$done_well|"'"retention_ms":3600000|"retention_bytes":null' '{"retention_ms":3600000}'
send PATCH '/v1/topics/{topic}' 200 '"retention_ms":null' '{"retention_ms":null}'
send PATCH '/v1/topics/{other}' 404 '"error_code":40401' '{"retention_ms":1}'
call GET '/v1/topics/{topic}' 200 "$done_well|"'"topic_id":"|"retention_ms":null'
topic_id=$(field topic_id)

# the simple API
send POST /producer/register 201 "$done_well|"'"producer_id":' '{"topic":"{topic}","name":"api-test"}'
producer_id=$(field producer_id)
send POST /producer/register 200 '"producer_id":{producer_id}}' '{"topic":"{topic}","name":"api-test"}'
send POST /consumer/register 201 "$done_well|"'"consumer_id":' '{"topic":"{topic}","name":"one by one"}'
consumer_id=$(field consumer_id)
send POST /consumer/register 404 '"error_code":40401' '{"topic":"{other}"}'
message='{"topic":"{topic}","producer_id":{producer_id},"message":"one coffee","key":"table-17"}'
send POST /producer/produce 200 "$done_well|"'"partition_id":0|"offset":0}' "$message" -H "Idempotency-Key: $topic"
send POST /producer/produce 200 '"offset":0}' "$message" -H "Idempotency-Key: $topic"
send POST /producer/produce 404 '"error_code":40404' '{"topic":"{topic}","producer_id":2000000000,"message":"?"}'
send POST /producer/produce 400 '"error_code":40001|message' '{"topic":"{topic}","producer_id":{producer_id}}'
call GET '/size?topic={topic}&consumer_id={consumer_id}' 200 "$done_well|"'"size":1}'
call GET '/consumer/consume?topic={topic}&consumer_id={consumer_id}&wait_ms=5000' 200 \
    "$done_well|"'"message":"one coffee"|"key":"table-17"|"offset":0|"producer_id":{producer_id}'
call GET '/consumer/consume?topic={topic}&consumer_id={consumer_id}' 204 ''
call GET '/size?topic={topic}&consumer_id={consumer_id}' 200 '"size":0}'
call GET '/size?topic={topic}&consumer_id=2000000000' 404 '"error_code":40403|Consumer not found'

# messages and offsets
send POST '/v1/topics/{topic}/producers' 201 "$done_well|"'"epoch":|"topic_id":"{topic_id}"' '{"name":"api-test-batches"}'
send POST '/v1/topics/{topic}/messages' 200 "$done_well|"'"offset":1}|"offset":2}' \
    '{"messages":[{"value":"two teas","headers":[{"key":"waiter","value":"Ada"}]},{"value":{"base64":"/w=="}}]}'
send POST '/v1/topics/{topic}/messages' 400 '"error_code":40001' '{"messages":[]}'
call GET '/v1/topics/{topic}/partitions/{partition_id}/ranges/{range}' 200 \
    "$done_well|"'"topic_id":"{topic_id}"|one coffee' -L
ends_with=28
call GET '/v1/topics/{topic}/events?from=earliest' 200 'event: message|"value":"one coffee"|-0-3' --max-time 3
ends_with=0
call GET '/v1/topics/{topic}/partitions/{partition_id}/messages?offset=0&wait_ms=5000' 200 \
    "$done_well|"'"value":"one coffee"|"value":"two teas"|"key":"waiter"|"base64":"/w=="|"next_offset":3'
call GET '/v1/topics/{topic}/partitions/{partition_id}/messages' 400 'offset or timestamp'
call GET '/v1/topics/{topic}/partitions/{partition_id}/messages?offset=0' 200 'one coffee' \
    -H 'Accept: application/vnd.apache.arrow.stream'
call GET '/v1/topics/{topic}/partitions/{partition_id}/offsets?timestamp=0' 200 \
    "$done_well|"'"beginning_offset":0|"end_offset":3|"offset":0'
call GET '/v1/topics/{topic}/offsets' 200 "$done_well|"'"topic_id":"{topic_id}"|"partition_id":0|"end_offset":3'

# consumers that commit
send POST /consumer/register 201 '"consumer_id":' '{"topic":"{topic}","name":"many at once","from":"earliest"}'
consumer_id=$(field consumer_id)
call GET '/v1/consumers?topic={topic}' 200 "$done_well|"'"name":"one by one"|"name":"many at once"'
call GET '/v1/consumers/{consumer_id}' 200 "$done_well|"'"topic":"{topic}"|"name":"many at once"'
call GET '/v1/consumers/2000000000' 404 '"error_code":40403'
call GET '/v1/consumers/{consumer_id}/lag' 200 "$done_well|"'"cursor":0|"end_offset":3|"messages":3'
call GET '/v1/consumers/{consumer_id}/explain' 200 "$done_well|"'"summary":{"reason":"|"action":"|"in_flight":'
send POST '/v1/consumers/{consumer_id}/poll' 200 \
    "$done_well|"'"leases":[{|"cursor":0|"value":"one coffee"|"value":"two teas"|"lease_ms":' '{"wait_ms":5000}'
send POST '/v1/consumers/{consumer_id}/commit' 200 "$done_well|"'"partition_id":0,"offset":2}' \
    '{"offsets":[{"partition_id":0,"offset":2}]}'
send POST '/v1/consumers/{consumer_id}/commit' 409 '"error_code":40907' '{"offsets":[{"partition_id":0,"offset":1}]}'
send POST '/v1/consumers/{consumer_id}/commit' 422 '"error_code":42201' '{"offsets":[{"partition_id":0,"offset":99}]}'
send POST '/v1/consumers/{consumer_id}/seek' 200 "$done_well|"'"partition_id":0,"offset":0' '{"to":"earliest"}'
call GET '/v1/consumers/{consumer_id}/lag' 200 '"cursor":0|"messages":3'

call GET '/v1/consumers?topic={topic}&limit=1&after=0' 200 "$done_well|"'"next":'
call DELETE '/v1/consumers/{consumer_id}' 200 "$done_well"
call DELETE '/v1/consumers/{consumer_id}' 404 '"error_code":40403'
call GET '/v1/consumers/{consumer_id}/lag' 404 '"error_code":40403'

# batches, straight to the leading broker
send PUT '/v1/topics/{other}' 201 "$done_well|"'"topic":"{other}"' '{"partitions":1}'
call GET '/v1/routing/{other}' 200 "$done_well|"'"grant":"'
other_grant=$(field grant)
call GET '/v1/routing/{topic}' 200 "$done_well|"'"topic_id":"{topic_id}"|"path":"/v1/brokers/|"expires_at":'
grant=$(field grant)
broker_id=$(field leader)
batches='/v1/brokers/{broker_id}/topics/{topic_id}/partitions/{partition_id}/batches'
call GET "$batches?offset=0&wait_ms=5000" 200 'mq|one coffee|two teas' -H "$(grant_header "$grant")"
call GET "$batches?offset=0" 401 '"error_code":40102'
call GET "$batches?offset=0" 401 '"error_code":40102' -H "$(grant_header no-such-grant)"
call GET "$batches?offset=0" 403 '"error_code":40301' -H "$(grant_header "$other_grant")"
# One stored batch, sent back as it came, is appended behind the others.
call GET "$batches?offset=0&max_bytes=1" 200 'mq|one coffee' -H "$(grant_header "$grant")"
cp "$work/body" "$work/batch"
set -- -H 'Content-Type: application/vnd.myqueue.batch' --data-binary "@$work/batch"
call POST "$batches" 200 "$done_well|"'"base_offset":3|"count":1|"end_offset":4|"duplicate":false' \
    -H "$(grant_header "$grant")" "$@"
call POST "$batches" 401 '"error_code":40102|"outcome":"not_written"' "$@"
call POST "$batches" 401 '"error_code":40102' -H "$(grant_header no-such-grant)" "$@"
call POST "$batches" 403 '"error_code":40301' -H "$(grant_header "$other_grant")" "$@"
call POST "$batches" 400 '"error_code":40001' -H "$(grant_header "$grant")" \
    -H 'Content-Type: application/vnd.myqueue.batch' --data-binary 'not a batch'
call GET '/v1/topics/{topic}/offsets' 200 '"end_offset":4'

# statistics: there may be none yet
call GET '/v1/stats/partitions?topic={topic}' 200 "$done_well|"'"partitions":['
call GET '/v1/stats/consumers?topic={topic}' 200 "$done_well|"'"consumers":['
call GET '/v1/stats/topics?topic={topic}&minutes=5' 200 "$done_well|"'"topics":['
call GET '/v1/stats/topics/totals?topic={topic}&last=1h&step=5m' 200 "$done_well|"'"topics":['
call GET '/v1/stats/consumers/totals?topic={topic}' 200 "$done_well|"'"consumers":['
call GET '/v1/stats/plot.svg?metric=messages&topic={topic}' 200 '<svg |</svg>'
call GET '/v1/stats/runs?limit=1' 200 "$done_well|"'"runs":['

# unknown resources
call GET /no/such/path 404 '"error_code":40400'
call PATCH /topics 405 '"error_code":40500'
call DELETE '/v1/topics/{topic}' 200 "$done_well"
call DELETE '/v1/topics/{other}' 200 "$done_well"
call DELETE '/v1/topics/{topic}' 404 '"error_code":40401'
call GET '/v1/topics/{topic}' 404 '"error_code":40401'

echo
echo "$calls calls, $wrong wrong"
[ "$wrong" -eq 0 ]
