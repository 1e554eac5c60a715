#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Runs inside of a node's namespaces, as its first command: setup.sh NAME FOLDER ADDRESS GATEWAY
# Every mount is of this node alone, and goes with its mount namespace.
name=$1 folder=$2 address=$3 gateway=$4
scripts=$(dirname "$0")
mount --make-rprivate /
hostname "$name"

# The kubelet's device plugin socket is at a fixed path (k8s.io/kubelet pkg/apis/deviceplugin/v1beta1 KubeletSocket).
# Images and containers are in memory, because deleting their thousands of files from a disk takes a minute.
for path in /var/lib /var/log /run; do
  mount -t tmpfs -o mode=755 "$(basename $path)" "$path"
done
mkdir -p /var/lib/kubelet /var/log/pods /var/log/containers /var/lib/containerd

# sysfs shows the devices of the network namespace in which it is mounted; cgroups are rooted at this node's own.
mount -t sysfs sysfs /sys
mount -t tmpfs cgroup /sys/fs/cgroup
for controller in cpu cpuacct cpuset memory devices freezer blkio pids systemd; do
  mkdir "/sys/fs/cgroup/$controller"
  options=$controller
  if [ "$controller" = systemd ]; then options=none,name=systemd; fi
  mount -t cgroup -o "$options" cgroup "/sys/fs/cgroup/$controller"
done

# Numbers of devices: Linux' admin-guide/devices.txt. Those of the mock driver are made by devices.sh.
mkdir -p "$folder/dev"
mount -t tmpfs dev "$folder/dev"
cd "$folder/dev"
for device in "null 1 3" "zero 1 5" "full 1 7" "random 1 8" "urandom 1 9" "kmsg 1 11" "tty 5 0"; do
  set -- $device
  mknod -m 666 "$1" c "$2" "$3"
done
mkdir pts shm mqueue
sh -e "$scripts/devices.sh" "$folder"
mount --bind "$folder/driver" /proc/driver
ln -s pts/ptmx ptmx
ln -s /proc/self/fd fd
ln -s fd/0 stdin
ln -s fd/1 stdout
ln -s fd/2 stderr
cd /
mount --rbind "$folder/dev" /dev
mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t mqueue mqueue /dev/mqueue

ip link set lo up
ip addr add "$address" dev eth0
ip link set eth0 up
ip route add default via "$gateway"
sysctl -q -w net.ipv4.ip_forward=1
