#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the device files of a node's mock driver in place of those that are there: devices.sh FOLDER
# FOLDER/devices lists them: path, major and minor number.
cd "$1/dev"
rm -rf nvidia*
mkdir nvidia-caps
while read -r path major minor; do
  mknod -m 666 "$1$path" c "$major" "$minor"
done < "$1/devices"
