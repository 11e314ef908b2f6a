// SPDX-License-Identifier: BSD-2-Clause

// Package datapath is a bridge's part in the kernel, seen from user space. It loads the
// programs of bpf/, specialised for a configuration, pins them, attaches them to ports,
// swaps them under traffic, and reads and writes their tables. This process's memory
// holds no state of a bridge: a bridge lives in pinned maps, programs and links under
// Root.
package datapath

//go:generate go tool bpf2go -go-package datapath -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu" -type port -type berth -type fdb_entry -type port_flag -type port_fact -type port_note -type port_taken -type stp_guard -type feature -type drop_reason -type event_kind -type event -type control_op -type control -type bridge_flag -type vlan_kind -type vlan -type captured -type capture_point -type capture_bytes -type talker -type sample -type sample_kind -type sample_log -type traced -type step -type learned -type found -type flood_past -type port_buckets -type port_state -type stp_state -type stp_choice -type vlan_admit -type control_frame -type control_protocol -type rule -type rule_key -type rule_list -type rule_mask -type rule_stats -type skb_places -type binding -type binding_key -type pf_walk -type counter -type clock -type pf_shared -type pf_cell -type pf_dim -type pf_ask -type pf_counter -type pf_state_flag -type pf_tcp_state -type pf_timeout -type pf_return -type pf_action -type pf_rule_flag -type pf_scrub -type pf_scrub_flag -type pf_table_op -type pf_table_request -type pf_config -type pf_logged -type route -type gateway -type route_places -type device_places -type port_way -type clock_op -type pf_packet -type pf_source_kind -type pf_second -type pf_limited -type pf_second_node -type pf_translation_kind -type pf_port_stats -type pf_ports -type pf_mark kernel ../bpf/switch.bpf.c

// The same without the features that a plain switch does not have; see Store.programs.
//
//go:generate go tool bpf2go -go-package datapath -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu" -no-global-types plain ../bpf/plain.bpf.c

// The same for trials, which record their steps; see Store.programs.
//
//go:generate go tool bpf2go -go-package datapath -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu" -no-global-types trial ../bpf/trial.bpf.c

// The same with one lock around the FDB, for the lab; see Store.Locked.
//
//go:generate go tool bpf2go -go-package datapath -cc clang-19 -strip llvm-strip-19 -target bpfel -cflags "-O2 -g -mcpu=v3 -Wall -Werror -I/usr/include/x86_64-linux-gnu" -no-global-types locked ../bpf/locked.bpf.c

// The sum of the objects that a bridge is loaded from; see build.
//
//go:generate go run ./sum kernel_bpfel.o plain_bpfel.o
