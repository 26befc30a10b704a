#!/bin/sh
# The user `shoal` with the Secret's password, as a hash in memory; then the server, in this process's place.
set -eu
umask 077
hash=$(tr -d '\n\r' < /run/secrets/shoal/trace-store/trace-store-password | sha256sum | cut -d ' ' -f 1)
cat > /etc/clickhouse-server/users.d/shoal.xml <<END
<clickhouse>
  <users>
    <default remove="1"/>
    <shoal>
      <password_sha256_hex>$hash</password_sha256_hex>
      <networks><ip>::/0</ip></networks>
      <profile>default</profile>
      <quota>default</quota>
    </shoal>
  </users>
</clickhouse>
END
exec clickhouse-server --config-file=/etc/clickhouse-server/config.xml
