#!/bin/sh
# The users with their Secrets' passwords, as hashes in memory; then the server, in this process's place.
# `shoal` is the gateways', who make tables and write; `shoal-reader` the registry's, who may read them and nothing else.
set -eu
umask 077
hash_of() { tr -d '\n\r' < "$1/trace-store-password" | sha256sum | cut -d ' ' -f 1; }
hash=$(hash_of /run/secrets/shoal/trace-store)
reader_hash=$(hash_of /run/secrets/shoal/trace-store-reader)
cat > /etc/clickhouse-server/users.d/shoal.xml <<END
<clickhouse>
  <profiles>
    <reader>
      <readonly>2</readonly>
    </reader>
  </profiles>
  <users>
    <default remove="1"/>
    <shoal>
      <password_sha256_hex>$hash</password_sha256_hex>
      <networks><ip>::/0</ip></networks>
      <profile>default</profile>
      <quota>default</quota>
    </shoal>
    <shoal-reader>
      <password_sha256_hex>$reader_hash</password_sha256_hex>
      <networks><ip>::/0</ip></networks>
      <profile>reader</profile>
      <quota>default</quota>
      <grants><query>GRANT SELECT ON shoal.*</query></grants>
    </shoal-reader>
  </users>
</clickhouse>
END
exec clickhouse-server --config-file=/etc/clickhouse-server/config.xml
