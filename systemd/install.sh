#!/bin/bash
# Installs koordlet under /opt/koordlet, its unit, slices and example files. Existing files in /etc/koordlet are kept.
set -euo pipefail
[ "$(id -u)" -eq 0 ] || { echo "install-systemd: run as root"; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
root=${DESTDIR:-}
python3 -m venv "$root/opt/koordlet"
"$root/opt/koordlet/bin/pip" install -q "$here/.."
install -D -m 0644 -t "$root/etc/systemd/system" "$here"/koordlet.service "$here"/koordlet.slice "$here"/batch.slice
install -D -m 0644 -t "$root/usr/share/doc/koordlet" "$here/../README.md"
install -d -m 0755 "$root/etc/koordlet/local.d"
for file in nodeslo.yaml node.yaml local.d/web-and-batch.yaml; do
  [ -e "$root/etc/koordlet/$file" ] || install -m 0644 "$here/examples/$file" "$root/etc/koordlet/$file"
done
if [ -z "$root" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
echo "installed. Edit /etc/koordlet/local.d, then: systemctl enable --now koordlet"
