#!/usr/bin/env bash
# Unpacks Debian's arm64 packages of what linnet stands on: cmake/aarch64.sh FOLDER. apt reads the system's sources, but keeps its lists, its cache and its
# idea of what is installed below FOLDER.apt: nothing of the system changes, and no rights are needed.
set -euo pipefail
sysroot=$1 apt=$1.apt
packages=(libc6-dev libdnnl-dev libjansson-dev libpcre2-dev libutf8proc-dev libcmocka-dev)

if ! . /etc/os-release || [ "$ID" != debian ]; then
    echo "The arm64 libraries are taken from Debian's packages, and this is ${ID:-no Debian}: put them into $sysroot by hand (${packages[*]})." >&2
    exit 2
fi
rm -rf "$sysroot" "$apt"
mkdir -p "$apt"/{state/lists/partial,cache/archives/partial,log}
: >"$apt/status"
cat >"$apt/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures "arm64";
APT::Sandbox::User "";
APT::Get::Assume-Yes "true";
APT::Install-Recommends "false";
Dir::State "$PWD/$apt/state";
Dir::State::status "$PWD/$apt/status";
Dir::Cache "$PWD/$apt/cache";
Dir::Log "$PWD/$apt/log";
Debug::NoLocking "true";
CONF
export APT_CONFIG=$PWD/$apt/apt.conf
apt-get -q update
apt-get -q --download-only install "${packages[@]}"
mkdir "$sysroot"
for deb in "$apt"/cache/archives/*.deb; do dpkg-deb -x "$deb" "$sysroot"; done
# absolute links would lead out of it
find "$sysroot" -type l -lname '/*' | while IFS= read -r link; do
    ln -sfn "$(realpath -m --relative-to="$(dirname "$link")" "$sysroot$(readlink "$link")")" "$link"
done
rm -rf "$apt"
