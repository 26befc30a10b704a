#!/bin/sh
# One of the bus's servers, or the sentinel beside it: its configuration, then the process itself.
#
#   node.sh server      Valkey: the primary, or a replica of it
#   node.sh sentinel    watches all of them, and makes another one the primary where it is gone
#   node.sh ready       whether the server is the primary, or in touch with it
#   node.sh alive       whether the server answers, and is no primary beside the one that the other sentinels name
#   node.sh watches     whether the sentinel answers, and names whom the others name
#   node.sh leave       before the pod ends: another one becomes the primary first
#   node.sh shoal ...   called by the sentinel after a failover, with the new primary's name in sixth place
#
# The primary is whom another sentinel names. Where none answers, since all begin at once, it is whom this node knew
# last (/data/primary), and at the very first start the first of NODES. A node that was away meanwhile may be wrong: it
# takes no writes, having no replica, no client asks a sentinel that knows no other, and its probes start it again.
# Where the last primary does not come back, the bus stays away: who goes on without its data is a person's word.
set -eu
umask 077
password=$(cat /run/secrets/shoal/bus-password/bus-password)
export REDISCLI_AUTH="$password"

ask() { timeout 2 valkey-cli -h "$1" -p 26379 sentinel "$2" shoal 2>/dev/null; }

# Of a sentinel that knows no other one the word may be old.
named_by() {
  ask "$1" master | awk 'key == "ip" {ip = $0} key == "num-other-sentinels" {others = $0} {key = $0}
                         END {if (others > 0) print ip}'
}

named_by_others() {
  for node in $NODES; do
    [ "$node" != "$OWN_NAME" ] || continue
    named=$(named_by "$node") || true
    for known in $NODES; do
      if [ "$named" = "$known" ]; then echo "$named"; return; fi
    done
  done
}

remember() {
  echo "$1" > "/data/primary.$$"
  mv "/data/primary.$$" /data/primary
}

primary() {
  named=$(named_by_others)
  if [ -n "$named" ]; then
    remember "$named"
  else
    named=$(cat /data/primary 2>/dev/null) || named=${NODES%% *}
  fi
  echo "$named"
}

role() { timeout 2 valkey-cli -h "$OWN_NAME" -p 6379 role | head -n 1; }

case "$1" in
server)
  leader=$(primary)
  # A file of their own: a failover writes the configuration anew, and would have each user twice.
  {
    cat /run/secrets/shoal/bus-users/users.acl
    echo "user default on >$password ~* &* +@all"
  } > /run/valkey/users.acl
  {
    echo "aclfile /run/valkey/users.acl"
    echo "requirepass $password"
    echo "primaryauth $password"
    echo "replica-announce-ip $OWN_NAME"
    echo "dir /data"
    echo "appendonly yes"
    echo "appendfsync everysec"
    # A primary that is cut off from both replicas stops within 10 s: on the other side another one has begun.
    echo "min-replicas-to-write 1"
    echo "min-replicas-max-lag 10"
    echo "repl-backlog-size 16mb"
    echo "client-output-buffer-limit replica 128mb 64mb 60"
    [ "$leader" = "$OWN_NAME" ] || echo "replicaof $leader 6379"
  } > /run/valkey/password.conf
  exec valkey-server /etc/valkey/valkey.conf
  ;;
sentinel)
  {
    echo "port 26379"
    echo "dir /run/sentinel"
    echo "requirepass $password"
    # Its users are the server's, and may ask where the primary is.
    awk '{print $1, $2, $3, $4, $5, "+auth +hello +ping +role +client|setinfo +client|setname +sentinel|master",
          "+sentinel|masters +sentinel|get-master-addr-by-name"}' /run/secrets/shoal/bus-users/users.acl
    echo "sentinel sentinel-pass $password"
    echo "sentinel resolve-hostnames yes"
    echo "sentinel announce-hostnames yes"
    echo "sentinel announce-ip $OWN_NAME"
    echo "sentinel monitor shoal $(primary) 6379 2"
    echo "sentinel auth-pass shoal $password"
    # A replica that is silent for 15 s is out at the gateways: the bus must be back well before.
    echo "sentinel down-after-milliseconds shoal 5000"
    echo "sentinel failover-timeout shoal 10000" # tried again after twice as long
    echo "sentinel client-reconfig-script shoal /etc/bus-node/node.sh"
  } > /run/sentinel/sentinel.conf
  exec valkey-server /run/sentinel/sentinel.conf --sentinel
  ;;
ready)
  valkey-cli -h "$OWN_NAME" -p 6379 info replication | grep -q -e role:master -e master_link_status:up
  ;;
alive)
  case "$(role)" in
  slave) ;;
  master) case "$(named_by_others)" in "" | "$OWN_NAME") ;; *) exit 1 ;; esac ;;
  *) exit 1 ;;
  esac
  ;;
watches)
  named=$(ask "$OWN_NAME" get-master-addr-by-name | head -n 1)
  others=$(named_by_others)
  [ -n "$named" ] && [ "$named" = "${others:-$named}" ]
  ;;
leave)
  [ "$(role)" = master ] || exit 0
  for node in $NODES; do
    [ "$node" != "$OWN_NAME" ] || continue
    [ "$(ask "$node" failover)" != OK ] || break
  done
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ "$(role)" = master ] || exit 0
    sleep 1
  done
  ;;
shoal)
  remember "$6"
  ;;
*)
  echo "node.sh: $1?" >&2
  exit 2
  ;;
esac
