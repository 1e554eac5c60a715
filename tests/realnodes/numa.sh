# Two NUMA nodes for the kubelet and the device plugin of a node, on a machine that may have one: CPU 0 on the first, all
# others on the second, and the GPUs of the lists of PCI addresses "$1" and "$2". Mounts over sysfs; "off" takes them away.
set -e
if [ "$1" = off ]; then
  umount /sys/devices/system/node /sys/bus/pci/devices
  exit
fi
root=/run/numa
rm -rf "$root"
number=0
for addresses in "$1" "$2"; do
  mkdir -p "$root/node/node$number/hugepages"
  echo "Node $number MemTotal: 8388608 kB" > "$root/node/node$number/meminfo"
  [ "$number" = 0 ] && echo "10 20" > "$root/node/node0/distance" || echo "20 10" > "$root/node/node1/distance"
  for address in $addresses; do
    mkdir -p "$root/pci/$address"
    echo "$number" > "$root/pci/$address/numa_node"
  done
  number=$((number + 1))
done
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
  name=${cpu##*/}
  [ "$name" = cpu0 ] && node=node0 || node=node1
  ln -s "$cpu" "$root/node/$node/$name"
done
echo 0-1 > "$root/node/online"
mount --bind "$root/node" /sys/devices/system/node
mount --bind "$root/pci" /sys/bus/pci/devices
