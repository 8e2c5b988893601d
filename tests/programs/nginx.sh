# nginx.sh: nginx with two workers under wrk: files, gzip, server-side includes, a rewriting filter and a proxy to itself.
#
# Who may call it: run.py. nginx_load.lua counts wrk's answers by status and length and stops after a fixed number
# of them; after the load, what curl gets is compared.
#
# program: reach=nginx,wrk needs=nginx:nginx,wrk:wrk,curl:curl input=tree main=nginx
# version: nginx -v
#
# SPDX-License-Identifier: Apache-2.0
mkdir -p site temp
cat "$INPUT"/tree/d000/*.txt > site/large.txt
head -c 12000 site/large.txt > site/page.txt
for part in 1 2 3 4 5 6 7 8; do head -c $((part * 700)) site/large.txt > "site/part$part.txt"; done
{
    echo '<html><!--#set var="name" value="weir" -->'
    for part in 1 2 3 4 5 6 7 8; do echo "<p><!--#include virtual=\"/part$part.txt\" --> <!--#echo var=\"name\" --></p>"; done
    echo '</html>'
} > site/included.shtml
cat > nginx.conf <<CONF
daemon off;
worker_processes 2;
user root;
pid nginx.pid;
error_log error.log warn;
events { worker_connections 512; }
http {
    access_log off;
    log_not_found off;
    client_body_temp_path temp/body; proxy_temp_path temp/proxy; fastcgi_temp_path temp/fastcgi;
    uwsgi_temp_path temp/uwsgi; scgi_temp_path temp/scgi;
    types { text/plain txt; text/html shtml; }
    default_type application/octet-stream;
    keepalive_requests 200;
    upstream itself { server 127.0.0.1:$PORT; keepalive 8; }
    proxy_cache_path temp/cache keys_zone=cache:1m levels=1:2;
    server {
        listen 127.0.0.1:$PORT;
        root site;
        location / { }
        location ~ [.]shtml\$ { ssi on; }
        location ^~ /zip/ { alias site/; gzip on; gzip_types text/plain; gzip_min_length 1; gzip_comp_level 4; }
        location ^~ /sub/ { alias site/; sub_filter weir WEIR; sub_filter sluice gate; sub_filter_once off; sub_filter_types text/plain; }
        location ^~ /proxy/ { proxy_pass http://itself/; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffers 16 4k; }
        location ^~ /cached/ { proxy_pass http://itself/; proxy_cache cache; proxy_cache_valid 200 1h; }
    }
}
CONF
nginx -e error.log -p "$PWD/" -c "$PWD/nginx.conf" 2> start.log &
server=$!
get() { curl -sS --max-time 60 "$@"; }
for _ in $(seq 100); do
    get "http://127.0.0.1:$PORT/page.txt" > /dev/null 2>&1 && break
    sleep 0.05
done
ANSWERS=$((8000 * SCALE)) wrk -t 1 -c 32 -d 300s --timeout 60s -s "$HERE/nginx_load.lua" "http://127.0.0.1:$PORT" > load.log
grep -E '^(answers|status and length|errors): ' load.log || { cat load.log; exit 1; }
for path in page.txt included.shtml sub/large.txt proxy/large.txt proxy/included.shtml cached/large.txt cached/large.txt; do
    echo "$path $(get "http://127.0.0.1:$PORT/$path" | sha256sum)"
done
echo "gzip $(get -H 'Accept-Encoding: gzip' "http://127.0.0.1:$PORT/zip/large.txt" | sha256sum)"
echo "range $(get -r 1000-4999,9000-9999 "http://127.0.0.1:$PORT/large.txt" | sed -E 's/^--[0-9]+/--BOUNDARY/' | sha256sum)"
get -o /dev/null -w '%{http_code}\n' "http://127.0.0.1:$PORT/missing"
kill -QUIT $server
wait $server
# A worker that died is named here.
cat start.log error.log
