#!/bin/sh
# One PostgreSQL server of the trio in a container, run as the user postgres.
#   serve     make the data folder if there is none, then become the server
#   healthy   does it accept connections; a primary that finds itself replaced is stopped, and comes back as a standby
#   promote   make this standby the primary; only after the old primary has been stopped, and only if no other standby
#             has more. `promote anyway` does not ask the other standbys: what only they have is lost
#   role      say what this server is: primary or standby
#   passwords set the passwords of the environment on the primary, whichever server it is; in a container of its own
# Settings: POSTGRES_NAME (this server's name and host name), POSTGRES_SERVERS (all names, the first one is the primary
# on the very first start), POSTGRES_PASSWORD, MYQUEUE_DATABASE_PASSWORD, REPLICATION_PASSWORD, POSTGRES_PATIENCE_S (how
# long servers that do not answer are asked again). Assumes of the image only that the programs of PostgreSQL are on
# PATH and that POSTGRES_FOLDER, a volume, may be written.
#
# Every promotion begins a new timeline. The highest timeline is authoritative: data is replaced only by a copy of the
# same database on a later timeline, and the script waits while a server's state is unclear.
set -eu

folder=${POSTGRES_FOLDER:-/var/lib/postgresql}
data=$folder/myqueue
fresh=$folder/.myqueue.new
password_file=$folder/.admin-password
fixed_settings=${POSTGRES_SETTINGS:-/etc/myqueue/postgresql.conf}
admin=postgres
replicator=replicator
database=myqueue
timeout_s=${POSTGRES_PATIENCE_S:-8}
stop_the_wrong_one="Stop the server that is wrong, and remove its volume"
received="SELECT greatest(pg_last_wal_receive_lsn(), pg_last_wal_replay_lsn())"

say() {
    echo "postgres.sh: $*" >&2
}

refuse() {
    say "$*"
    exit 1
}

slot_of() {
    echo "$1" | sed 's/-/_/g'
}

others() {
    for server in $POSTGRES_SERVERS; do
        [ "$server" = "$POSTGRES_NAME" ] || echo "$server"
    done
}

# The words of a list with commas between them.
with_commas() {
    echo "$*" | sed 's/ /,/g'
}

# One value from another server.
ask() {
    PGPASSWORD=$REPLICATION_PASSWORD timeout 5 psql -X -q -w -A -t -F ' ' -v ON_ERROR_STOP=1 \
        -d "host=$1 port=5432 user=$replicator dbname=postgres connect_timeout=2" -c "$2"
}

# One value from this server.
ask_here() {
    psql -X -q -A -t -v ON_ERROR_STOP=1 -d postgres -c "$1"
}

# What a server is: identifier, timeline, position, database, and whether it is a standby. Or why it does not say.
identify() {
    PGPASSWORD=$REPLICATION_PASSWORD timeout 5 psql -X -q -w -A -t -F ' ' -v ON_ERROR_STOP=1 \
        -d "host=$1 port=5432 user=$replicator dbname=postgres replication=database connect_timeout=2" \
        -c "IDENTIFY_SYSTEM" -c "SHOW in_hot_standby" 2>&1
}

# Sets identifier and timeline to those of the data folder; no data is timeline 0. The second timeline that counts is
# that of a promotion whose checkpoint is not written yet.
look_here() {
    identifier= timeline=0
    [ -e "$data/PG_VERSION" ] || return 0
    state=$(LC_ALL=C pg_controldata -D "$data")
    identifier=$(echo "$state" | sed -n 's/^Database system identifier: *//p')
    for number in $(echo "$state" | sed -n "s/^Latest checkpoint's TimeLineID: *//p
            s/^Min recovery ending loc's timeline: *//p"); do
        [ "$number" -le "$timeline" ] || timeline=$number
    done
}

# Identifies all other servers. Sets unreachable (no answer: away, or not yet started), unclear (one that answers
# without its state), foreign (one with another database), latest (one on the highest timeline), primary (the primary
# on the highest timeline), with the timelines of the last two.
look_around() {
    unreachable= unclear= foreign= latest= latest_timeline=0 primary= primary_timeline=0
    known=$identifier
    for server in $(others); do
        if answer=$(identify "$server"); then
            set -- $answer
            if [ "$#" -ne 5 ]; then
                unclear="$server answers: $answer"
            elif [ "$1" != "${known:=$1}" ]; then
                foreign=$server
            else
                [ "$2" -le "$latest_timeline" ] || { latest=$server latest_timeline=$2; }
                [ "$5" = on ] || [ "$2" -le "$primary_timeline" ] || { primary=$server primary_timeline=$2; }
            fi
        else
            case $answer in
            *FATAL:*) unclear="$server answers: ${answer##*FATAL:  }" ;;
            *) unreachable="$unreachable $server" ;;
            esac
        fi
    done
}

write_settings() {
    names=$(with_commas $POSTGRES_SERVERS | sed 's/[^,][^,]*/"&"/g')
    hosts=$(with_commas $(others))
    {
        cat "$fixed_settings"
        echo "listen_addresses = '*'"
        echo "port = 5432"
        echo "unix_socket_directories = '/tmp'"
        echo "cluster_name = '$POSTGRES_NAME'"
        echo "hba_file = '$1/myqueue_hba.conf'"
        echo "synchronous_standby_names = 'ANY 1 ($names)'"
        echo "primary_slot_name = '$(slot_of "$POSTGRES_NAME")'"
        # Whichever of the others is the primary: a standby finds a promoted one by itself.
        echo "primary_conninfo = 'host=$hosts port=5432 user=$replicator password=$REPLICATION_PASSWORD" \
            "application_name=$POSTGRES_NAME target_session_attrs=read-write connect_timeout=2'"
    } >"$1/myqueue.conf"
    chmod 600 "$1/myqueue.conf"
    printf '%s\n' "local all $admin peer" "host all all all scram-sha-256" \
        "host replication $replicator all scram-sha-256" >"$1/myqueue_hba.conf"
}

# The first commits must not wait for standbys that do not exist yet. The first error ends it, and is logged without
# the statement, which contains a password.
single_user() {
    postgres --single -j -D "$1" -c hba_file="$1/myqueue_hba.conf" -c synchronous_standby_names= -c exit_on_error=on \
        -c log_min_error_statement=panic postgres >/dev/null
}

make_database() {
    trap 'rm -f "$password_file"' EXIT
    (umask 077 && printf '%s' "$POSTGRES_PASSWORD" >"$password_file")
    initdb -D "$fresh" -U $admin -A scram-sha-256 --auth-local=peer --pwfile="$password_file" -E UTF8 \
        --locale=C.UTF-8 --no-instructions >/dev/null
    rm "$password_file"
    echo "include = 'myqueue.conf'" >>"$fresh/postgresql.conf"
    write_settings "$fresh"
    {
        printf "CREATE ROLE myqueue LOGIN PASSWORD '%s';\n\n" "$MYQUEUE_DATABASE_PASSWORD"
        printf "GRANT pg_read_all_stats TO myqueue;\n\n"
        printf "CREATE ROLE %s LOGIN REPLICATION PASSWORD '%s';\n\n" $replicator "$REPLICATION_PASSWORD"
        printf "GRANT pg_use_reserved_connections TO %s;\n\n" $replicator
        printf "CREATE DATABASE %s OWNER myqueue;\n\n" $database
        for server in $(others); do
            printf "SELECT pg_create_physical_replication_slot('%s', true);\n\n" "$(slot_of "$server")"
        done
    } | single_user "$fresh"
    mv "$fresh" "$data"
}

# The statements that leave a server with a usable slot of that name: one that `$2` describes is dropped first.
slot_statements() {
    echo "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
        WHERE slot_name = '$1' AND NOT active AND $2;
        SELECT pg_create_physical_replication_slot('$1', true)
        WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '$1')"
}

copy_primary() {
    say "copying $primary"
    slot=$(slot_of "$POSTGRES_NAME")
    ask "$primary" "$(slot_statements "$slot" "wal_status = 'lost'")" >/dev/null
    PGPASSWORD=$REPLICATION_PASSWORD pg_basebackup -D "$fresh" -h "$primary" -p 5432 -U $replicator -X stream \
        -S "$slot" -c fast -w
    touch "$fresh/standby.signal"
    write_settings "$fresh"
    if [ -e "$data" ]; then
        say "the data that was here stays in $data.old until the next time"
        rm -rf "$data.old"
        mv "$data" "$data.old"
    fi
    mv "$fresh" "$data"
}

# A standby starts without the others. It needs a new copy when the primary no longer has the WAL that it lacks.
prepare_standby() {
    [ -z "$foreign" ] || say "$foreign has another database: nothing is taken from it"
    [ -n "$primary" ] && [ "$primary_timeline" -eq "$latest_timeline" ] && [ "$primary_timeline" -ge "$timeline" ] ||
        return 0
    status=$(ask "$primary" "SELECT coalesce((SELECT wal_status FROM pg_replication_slots
        WHERE slot_name = '$(slot_of "$POSTGRES_NAME")'), 'missing')")
    case $status in
    lost | missing)
        say "$primary no longer keeps what this standby lacks"
        copy_primary
        ;;
    esac
}

# Sets plan: start, make or copy; or wait, and why.
decide() {
    look_around
    plan=wait
    if [ -n "$foreign" ]; then
        why="$foreign has another database (another system identifier). $stop_the_wrong_one"
    elif [ -n "$unclear" ]; then
        why="$unclear. If it stays like this, stop that server"
    elif [ -n "$unreachable" ] && [ "$(date +%s)" -lt "$deadline" ]; then
        why="asking$unreachable"
    elif [ "$latest_timeline" -gt "$timeline" ] && [ "$primary_timeline" -eq "$latest_timeline" ]; then
        plan=copy
    elif [ "$latest_timeline" -gt "$timeline" ]; then
        why="$latest has later data but is a standby. Start the server that is the primary, or promote this one:\
 docker compose exec $latest sh /etc/myqueue/postgres.sh promote"
    elif [ "$timeline" -eq 0 ] && [ "$POSTGRES_NAME" != "${POSTGRES_SERVERS%% *}" ]; then
        why="there is no primary yet"
    elif [ "$timeline" -eq 0 ]; then
        plan=make
    elif [ "$primary_timeline" -eq "$timeline" ]; then
        why="$primary is a primary too, on the same timeline $timeline. $stop_the_wrong_one"
    else
        plan=start
    fi
}

# The data folder appears under its name only when it is complete: a preparation that was cut off is simply done again.
prepare() {
    rm -rf "$fresh" "$password_file"
    if [ ! -e "$data/PG_VERSION" ] && [ -e "$data.old" ]; then
        say "a copy was cut off before it took the place of the data: going back to $data.old"
        rm -rf "$data"
        mv "$data.old" "$data"
    fi
    look_here
    if [ -e "$data/standby.signal" ]; then
        look_around
        prepare_standby
        return
    fi
    # A server with data waits for a shorter time than one that would make an empty database.
    wait_s=$timeout_s
    [ "$timeline" -ne 0 ] || wait_s=$((2 * timeout_s))
    deadline=$(($(date +%s) + wait_s))
    reported=
    decide
    while [ $plan = wait ]; do
        [ "$why" = "$reported" ] || say "waiting: $why"
        reported=$why
        sleep 1
        decide
    done
    case $plan in
    make)
        say "first start: making the primary"
        make_database
        ;;
    copy)
        # Two primaries would part ways. What this one has and the other has not was never acknowledged.
        [ "$timeline" -eq 0 ] || say "$primary has become the primary: this server comes back as its standby"
        copy_primary
        ;;
    esac
}

# Two primaries can exist when they were started without a connection to each other. The older one ends; Docker starts
# it again, and it becomes a standby.
healthy() {
    pg_isready -q -h 127.0.0.1
    [ ! -e "$data/standby.signal" ] || return 0
    look_here
    look_around
    [ "$latest_timeline" -gt "$timeline" ] || return 0
    say "$latest is on a later timeline: this primary has been replaced, and stops"
    pg_ctl -D "$data" -m fast -W stop
    exit 1
}

# A commit waits for one standby, not for all: the last ones may be on another standby only.
refuse_if_behind() {
    for server in $(others); do
        case " $unreachable " in *" $server "*) continue ;; esac
        position=$(ask "$server" "$received")
        [ "$(ask_here "SELECT pg_wal_lsn_diff('$position', ($received)) > 0")" != t ] ||
            refuse "$server has received more than $POSTGRES_NAME: promote that one"
    done
    # The old primary is one of the unreachable ones.
    [ "$(echo $unreachable | wc -w)" -le 1 ] || refuse "no answer from:$unreachable. One of them may have more than" \
        "$POSTGRES_NAME; if they will not come back: promote anyway"
}

# From then on two servers are on the new timeline: the old primary cannot reach only one that is not.
await_follower() {
    attempt=0
    while [ "$(ask_here "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'")" -eq 0 ]; do
        attempt=$((attempt + 1))
        [ $attempt -lt 30 ] || refuse "$POSTGRES_NAME is the primary, but no standby follows it, and nothing can be" \
            "committed until one does. Do not let the old primary run without $POSTGRES_NAME before that"
        sleep 1
    done
}

promote() {
    [ -e "$data/standby.signal" ] || refuse "$POSTGRES_NAME is not a standby"
    look_here
    look_around
    [ -z "$primary" ] || refuse "$primary is the primary and answers: stop it first, docker compose stop $primary"
    [ -z "$foreign" ] || refuse "$foreign has another database: stop it first, docker compose stop $foreign"
    [ -z "$unclear" ] || refuse "$unclear. Try again when it says what it is, or stop it"
    [ "$latest_timeline" -le "$timeline" ] || refuse "$latest is on a later timeline: promote that one"
    [ "${1:-}" = anyway ] || refuse_if_behind
    [ -z "$unreachable" ] ||
        say "no answer from:$unreachable. Not reachable is not the same as stopped: see that no primary" \
        "runs there"
    [ "$(ask_here "SELECT pg_promote(wait => true)")" = t ] ||
        refuse "$POSTGRES_NAME was told to become the primary, and was not within a minute: look at its log"
    for server in $(others); do
        # One from an earlier life as primary may have lost its place in the log.
        ask_here "$(slot_statements "$(slot_of "$server")" true)" >/dev/null
    done
    await_follower
    echo "$POSTGRES_NAME is the primary"
}

# The administrator's own password is what opens the door: it cannot be changed this way.
tell_passwords() {
    printf "ALTER ROLE myqueue PASSWORD '%s';\nALTER ROLE %s PASSWORD '%s';\n" "$MYQUEUE_DATABASE_PASSWORD" \
        $replicator "$REPLICATION_PASSWORD" |
        PGPASSWORD=$POSTGRES_PASSWORD psql -X -q -w -v ON_ERROR_STOP=1 -d "host=$(with_commas $POSTGRES_SERVERS) \
port=5432 user=$admin dbname=postgres target_session_attrs=read-write connect_timeout=2"
    echo "the primary knows the passwords of .env now"
}

# They become part of statements and of settings.
check_passwords() {
    for name in POSTGRES_PASSWORD MYQUEUE_DATABASE_PASSWORD REPLICATION_PASSWORD; do
        eval "value=\${$name:-}"
        case $value in
        "") refuse "$name is not set: make .env with \`make env\`" ;;
        *[!A-Za-z0-9._~+/=-]*) refuse "$name may have letters, digits and . _ ~ + / = - only" ;;
        esac
    done
}

case ${1:-} in
serve)
    check_passwords
    : "${POSTGRES_NAME:?is not set}" "${POSTGRES_SERVERS:?is not set}"
    prepare
    write_settings "$data"
    # The server and what it starts need none of the passwords in their environment.
    exec env -u POSTGRES_PASSWORD -u MYQUEUE_DATABASE_PASSWORD -u REPLICATION_PASSWORD postgres -D "$data"
    ;;
healthy) healthy ;;
promote) promote "${2:-}" ;;
passwords)
    check_passwords
    tell_passwords
    ;;
role)
    if [ -e "$data/standby.signal" ]; then echo standby; else echo primary; fi
    ;;
*)
    refuse "usage: postgres.sh serve | healthy | promote [anyway] | role | passwords"
    ;;
esac
