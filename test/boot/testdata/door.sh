# Sends the boot's ID. Then each line from the test is a script in base64, whose status and output are sent back.
exec 3<>/dev/virtio-ports/test.door
echo "hello $(cat /proc/sys/kernel/random/boot_id)" >&3
while IFS= read -r line <&3; do
	said=$(base64 -d <<<"$line" | bash -s 2>&1)
	status=$?
	echo "$status $(base64 -w0 <<<"$said")" >&3
done
