#!/bin/sh
# One PostgreSQL server of the trio in a container, run as the user postgres.
#   serve     make the data folder if there is none, then become the server
#   promote   make this standby the primary; only after the old primary has been stopped, and only if no other standby
#             has more. `promote anyway` does not ask the other standbys: what only they have is lost
#   role      say what this server is: primary or standby
#   passwords tell the primary, wherever it is, the passwords of the environment; in a container of its own
# Settings: POSTGRES_NAME (this server's name and host name), POSTGRES_SERVERS (all names, the first one is the primary
# on the very first start), POSTGRES_PASSWORD, MYQUEUE_DATABASE_PASSWORD, REPLICATION_PASSWORD. Assumes of the image only
# that the programs of PostgreSQL are on PATH and that POSTGRES_FOLDER, a volume, may be written.
set -eu

folder=${POSTGRES_FOLDER:-/var/lib/postgresql}
data=$folder/myqueue
fresh=$folder/.myqueue.new
fixed_settings=${POSTGRES_SETTINGS:-/etc/myqueue/postgresql.conf}
admin=postgres
replicator=replicator
database=myqueue
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

# One value from another server, or nothing when it does not answer.
ask() {
    PGPASSWORD=$REPLICATION_PASSWORD PGCONNECT_TIMEOUT=2 psql -X -w -A -t -h "$1" -p 5432 -U $replicator -d postgres \
        -c "$2" 2>/dev/null || true
}

# One value from this server.
ask_here() {
    psql -X -q -A -t -v ON_ERROR_STOP=1 -d postgres -c "$1"
}

role_of() {
    ask "$1" "SELECT CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE 'primary' END"
}

found_with_role() {
    for server in $(others); do
        if [ "$(role_of "$server")" = "$1" ]; then
            echo "$server"
            return
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

# The first commits must not wait for standbys that do not exist yet.
single_user() {
    postgres --single -j -D "$1" -c hba_file="$1/myqueue_hba.conf" -c synchronous_standby_names= postgres >/dev/null
}

initialise() {
    password_file=$folder/.admin-password
    (umask 077 && printf '%s' "$POSTGRES_PASSWORD" >"$password_file")
    initdb -D "$fresh" -U $admin -A scram-sha-256 --auth-local=peer --pwfile="$password_file" -E UTF8 \
        --locale=C.UTF-8 --no-instructions >/dev/null
    rm "$password_file"
    echo "include = 'myqueue.conf'" >>"$fresh/postgresql.conf"
    write_settings "$fresh"
    {
        printf "CREATE ROLE myqueue LOGIN PASSWORD '%s';\n\n" "$MYQUEUE_DATABASE_PASSWORD"
        printf "GRANT pg_monitor TO myqueue;\n\n"
        printf "CREATE ROLE %s LOGIN REPLICATION PASSWORD '%s';\n\n" $replicator "$REPLICATION_PASSWORD"
        printf "CREATE DATABASE %s OWNER myqueue;\n\n" $database
        for server in $(others); do
            printf "SELECT pg_create_physical_replication_slot('%s', true);\n\n" "$(slot_of "$server")"
        done
    } | single_user "$fresh"
}

copy_from() {
    say "copying $1"
    PGPASSWORD=$REPLICATION_PASSWORD pg_basebackup -D "$fresh" -h "$1" -p 5432 -U $replicator -X stream \
        -S "$(slot_of "$POSTGRES_NAME")" -c fast -w
    touch "$fresh/standby.signal"
    write_settings "$fresh"
}

await_primary() {
    said=
    while primary=$(found_with_role primary) && [ -z "$primary" ]; do
        [ -n "$said" ] || say "waiting for a primary among: $(with_commas $(others))"
        said=yes
        sleep 1
    done
}

# The data folder appears under its name only when it is complete: a preparation that was cut off is simply done again.
prepare() {
    rm -rf "$fresh"
    if [ ! -e "$data/PG_VERSION" ]; then
        first=${POSTGRES_SERVERS%% *}
        primary=$(found_with_role primary)
        standby=$(found_with_role standby)
        if [ -z "$primary" ] && [ "$POSTGRES_NAME" = "$first" ] && [ -z "$standby" ]; then
            say "first start: making the primary"
            initialise
        elif [ -z "$primary" ] && [ "$POSTGRES_NAME" = "$first" ]; then
            refuse "has no data, but $standby is a standby with data: not making an empty primary beside it." \
                "Promote it: docker compose exec $standby sh /etc/myqueue/postgres.sh promote"
        else
            await_primary
            copy_from "$primary"
        fi
        mv "$fresh" "$data"
    elif [ ! -e "$data/standby.signal" ]; then
        primary=$(found_with_role primary)
        if [ -n "$primary" ]; then
            # Two primaries would part ways. What this one has and the other has not was never acknowledged.
            say "$primary has become the primary: this server comes back as its standby, its old data stays in $data.old"
            copy_from "$primary"
            rm -rf "$data.old"
            mv "$data" "$data.old"
            mv "$fresh" "$data"
        fi
    fi
}

# A commit waits for one standby, not for all: the last ones may be on another standby only.
refuse_if_behind() {
    silent=
    for server in $(others); do
        position=$(ask "$server" "$received")
        if [ -z "$position" ]; then
            silent="$silent $server"
        elif [ "$(ask_here "SELECT pg_wal_lsn_diff('$position', ($received)) > 0")" = t ]; then
            refuse "$server has received more than $POSTGRES_NAME: promote that one"
        fi
    done
    # The old primary is one of the silent ones.
    [ "$(echo $silent | wc -w)" -le 1 ] || refuse "no answer from:$silent. One of them may have more than" \
        "$POSTGRES_NAME; if they will not come back: promote anyway"
}

promote() {
    primary=$(found_with_role primary)
    [ -z "$primary" ] || refuse "$primary is the primary and answers: stop it first, docker compose stop $primary"
    [ -e "$data/standby.signal" ] || refuse "$POSTGRES_NAME is not a standby"
    [ "${1:-}" = anyway ] || refuse_if_behind
    ask_here "SELECT pg_promote(wait => true)" >/dev/null
    for server in $(others); do
        slot=$(slot_of "$server")
        # One from an earlier life as primary may have lost its place in the log.
        ask_here "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots
            WHERE slot_name = '$slot' AND NOT active" >/dev/null
        ask_here "SELECT pg_create_physical_replication_slot('$slot', true)
            WHERE NOT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = '$slot')" >/dev/null
    done
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

case ${1:-} in
serve)
    for name in POSTGRES_NAME POSTGRES_SERVERS POSTGRES_PASSWORD MYQUEUE_DATABASE_PASSWORD REPLICATION_PASSWORD; do
        eval "[ -n \"\${$name:-}\" ]" || refuse "$name is not set: make .env with \`make env\`"
    done
    prepare
    write_settings "$data"
    # The server and what it starts need none of the passwords in their environment.
    exec env -u POSTGRES_PASSWORD -u MYQUEUE_DATABASE_PASSWORD -u REPLICATION_PASSWORD postgres -D "$data"
    ;;
promote) promote "${2:-}" ;;
passwords) tell_passwords ;;
role)
    if [ -e "$data/standby.signal" ]; then echo standby; else echo primary; fi
    ;;
*)
    refuse "usage: postgres.sh serve | promote [anyway] | role | passwords"
    ;;
esac
