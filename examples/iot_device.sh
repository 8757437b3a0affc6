#!/usr/bin/env bash
# Send a device's readings to a topic, each once, with curl and a file for the sequence number.
#
#   ./iot_device.sh sensor-7 readings.txt http://127.0.0.1:8080/v1/topics/readings/partitions/0/records
#
# Appends each line of readings.txt that is not stored yet, and ends. The file only ever grows: the
# number of a line is its sequence number. So a line that is sent again, after a lost response, a
# crash or a power failure of the device, has its number again, and the server stores it once.
#
# readings.txt.state holds the epoch, the lines before this epoch, and the lines stored so far.
# After a lease (24 h by default) without a reading, the server has forgotten the device; then the
# numbers begin at 0 under the next epoch. If the last response before that silence was lost, its
# line is stored again.
#
# A new readings.txt needs a new name of the device, within a lease: its first lines would have the
# numbers of former ones, and count as stored.
set -euo pipefail

device=$1 readings=$2 url=$3
state=$readings.state

epoch=0 before=0 stored=0
if [[ -e $state ]]; then read -r epoch before stored < "$state"; fi

save() {
    echo "$epoch $before $stored" > "$state.new"
    sync "$state.new"
    mv "$state.new" "$state"
}

# Print the response's body, and its status in the last line.
post() {
    printf '%s' "$1" | curl -sS --max-time 30 -w '\n%{http_code}' --data-binary @- \
        -H 'Content-Type: application/octet-stream' -H "Producer-Id: $device" \
        -H "Producer-Epoch: $epoch" -H "Producer-Seq: $((stored - before))" "$url"
}

# A line without its end is not complete yet: `read` leaves it for the next run.
while IFS= read -r reading; do
    while true; do
        response=$(post "$reading") || { sleep 1; continue; }   # no response: the same again
        case ${response##*$'\n'} in
            200) break ;;
            5??) sleep 1 ;;                                     # not stored: the same again
            409)
                if [[ $response != *'"expected_seq":0'[,}]* || $stored == "$before" ]]; then
                    echo "$response" >&2                        # another device has this id
                    exit 1
                fi
                epoch=$((epoch + 1)) before=$stored             # forgotten: begin at 0
                save ;;
            *) echo "$response" >&2; exit 1 ;;
        esac
    done
    stored=$((stored + 1))
    save
done < <(tail -n "+$((stored + 1))" "$readings")
echo "$stored readings stored"
