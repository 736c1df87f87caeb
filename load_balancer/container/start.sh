#!/bin/sh
# nginx in a container: combines the shared configuration with this folder's includes and runs it in the foreground.
# Needs MYQUEUE_CLUSTER_SECRET. MYQUEUE_RESOLVER is the DNS server of the containers, Docker's if not set.
# MYQUEUE_MAX_CLIENT_CONNECTIONS is how many requests one client address may have in flight.
# Arguments go to nginx: "start.sh -t" only checks.
set -eu

source=$(cd "$(dirname "$0")/.." && pwd)
target=${MYQUEUE_NGINX_DIR:-/tmp/nginx}

refuse() {
    echo "start.sh: $1" >&2
    exit 2
}

secret=${MYQUEUE_CLUSTER_SECRET:-}
[ -n "$secret" ] || refuse "MYQUEUE_CLUSTER_SECRET is not set; the .env file has it"
case $secret in
    *[!A-Za-z0-9._~+/=-]*) refuse "MYQUEUE_CLUSTER_SECRET may have letters, digits and . _ ~ + / = - only" ;;
esac
resolver=${MYQUEUE_RESOLVER:-127.0.0.11}
case $resolver in
    *[!A-Za-z0-9.:\[\]\ -]*) refuse "MYQUEUE_RESOLVER must be addresses of DNS servers, separated by spaces" ;;
esac
max_connections=${MYQUEUE_MAX_CLIENT_CONNECTIONS:-4096}
case $max_connections in
    *[!0-9]* | ?????* | 0*) max_connections=0 ;;
esac
# The limit fits worker_connections in nginx.conf.
if [ "$max_connections" -lt 1 ] || [ "$max_connections" -gt 6144 ]; then
    refuse "MYQUEUE_MAX_CLIENT_CONNECTIONS must be a number from 1 to 6144"
fi

rm -rf "$target/upstreams"
mkdir -p "$target/temporary" "$target/upstreams"
rm -f "$target/site-secret.conf"
cp "$source"/nginx.conf "$source"/*.js "$source"/container/site-*.conf "$target"
(umask 077 && echo "map \"\" \$cluster_secret { default \"$secret\"; }" >"$target/site-secret.conf")
echo "resolver $resolver valid=2s ipv6=off;" >"$target/site-resolver.conf"
echo "map \"\" \$upstream_files { default \"$target/upstreams\"; }" >"$target/site-upstream-files.conf"
printf 'listen 127.0.0.1:8053 udp;\nset $upstream_files "%s";\n' "$target/upstreams" >"$target/site-dns.conf"
echo "limit_conn client_addresses $max_connections;" >"$target/site-limits.conf"

# The official image has njs as loadable modules, other builds have it built in.
: >"$target/site-modules.conf"
for name in ngx_http_js_module ngx_stream_js_module; do
    for folder in /usr/lib/nginx/modules /etc/nginx/modules; do
        if [ -e "$folder/$name.so" ]; then
            echo "load_module $folder/$name.so;" >>"$target/site-modules.conf"
            break
        fi
    done
done

exec nginx -p "$target" -c "$target/nginx.conf" -e stderr "$@"
