#!/bin/bash
# Installs what the labs need from Debian's packages when root; says what is missing otherwise.
set -euo pipefail
packages=(fuse3 qemu-system-x86 linux-image-amd64 busybox-static cpio kmod systemd runc iproute2 openssl)
missing=()
for p in "${packages[@]}"; do dpkg -s "$p" >/dev/null 2>&1 || missing+=("$p"); done
[ ${#missing[@]} -eq 0 ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
  echo "labs: missing packages, their tests will be skipped: apt-get install ${missing[*]}"; exit 0
fi
echo "labs: installing ${missing[*]}"
apt-get update -qq
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
