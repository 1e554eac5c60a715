#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs a command where /mps is the node's folder for MPS, as in the containers of NVIDIA's DaemonSets, and all else is as
# on the node: mps-root.sh FOLDER COMMAND…
# It needs a mount namespace of its own.
set -e
folder=$1
shift
mkdir -p "$folder/shm"
mount -t tmpfs none /mnt
mkdir /mnt/mps
for entry in /*; do
  case "$entry" in
  /mnt | /mps) ;;
  *)
    if [ -L "$entry" ]; then
      cp -P "$entry" /mnt
    elif [ -d "$entry" ]; then
      mkdir "/mnt$entry"
      mount --rbind "$entry" "/mnt$entry"
    fi
    ;;
  esac
done
mount --bind "$folder" /mnt/mps
exec chroot /mnt "$@"
