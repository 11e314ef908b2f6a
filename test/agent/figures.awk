# Makes a table of the output of the agent's benchmarks: `make bench-agent`.
# A figure is named by its benchmark and unit.

function figure(name, what, unit, wanted) { order[++n] = name; title[name] = what; of[name] = unit; must[name] = wanted }

BEGIN {
	figure("Killed lost", "frames lost by 20 kills of the agent and its restarts", "", "0")
	figure("Killed frames", "of frames that came to the switch", "", "-")
	figure("Killed frames/s", "at frames a second", "", "-")
	figure("Upgrade lost", "frames lost by 10 upgrades of program and datapath", "", "0")
	figure("Upgrade frames", "of frames that came to the switch", "", "-")
	figure("Upgrade frames/s", "at frames a second", "", "-")
	figure("Apply nothing-ms", "apply, 256 ports in 64 VLANs from nothing", "ms", "2000")
	figure("Apply unchanged-ms", "apply, the same without change", "ms", "100")
	figure("Apply export-ms", "export of the same", "ms", "-")
	figure("Idle/stp=off %core", "idle agent, 256 ports", "% of a core", "0.5")
	figure("Idle/stp=off MiB", "its memory", "MiB", "64")
	figure("Idle/stp=rstp %core", "idle agent, 256 ports, all of RSTP", "% of a core", "0.5")
	figure("Idle/stp=rstp MiB", "its memory", "MiB", "64")
	figure("Idle/seen %core", "idle agent, 256 ports, with metrics and page", "% of a core", "1")
	figure("Idle/seen MiB", "its memory, after a scrape", "MiB", "96")
	figure("Pages %core", "the same with ten pages open", "% of a core", "5")
	figure("Pages MiB", "its memory", "MiB", "96")
	figure("Page first-paint-ms", "the page's first paint in Chromium", "ms", "300")
	figure("Page kB", "what its first view loads", "kB", "200")
	figure("Page watch-pause-ms", "longest pause with 256 ports and 20 000 addresses: looking on", "ms", "100")
	figure("Page scroll-pause-ms", "scrolling", "ms", "100")
	figure("Page search-pause-ms", "searching", "ms", "100")
	figure("Page sort-pause-ms", "sorting", "ms", "-")
	figure("Scrape cpu-ms", "scrape of 256 ports with pf and 10 000 states, of a processor", "ms", "20")
	figure("Scrape wall-ms", "the same until it is read, median", "ms", "20")
	figure("Scrape series", "series of it", "", "-")
	figure("Changes changes/s", "addresses learned a second while the agent watches", "", "100000")
	figure("Changes happened", "changes of addresses in all", "", "-")
	figure("Changes unaccounted", "of these neither read, merged nor missed", "", "0")
	figure("Changes missed", "missed, by the agent's count", "", "-")
	figure("Changes lost", "frames lost meanwhile", "", "0")
	figure("Changes of-known", "forwarding meanwhile, against the same frames from one address", "", "0.95")
	figure("Changes of-stopped", "forwarding meanwhile, against an agent that is stopped", "", "-")
	figure("Changes of-quiet", "forwarding meanwhile, against no such frames at all", "", "-")
	figure("Hotplug/tap/berth ms", "tap, from the call that makes it to the first frame forwarded", "ms", "5")
	figure("Hotplug/tap/berth after-ms", "tap, from when it is made and up", "ms", "-")
	figure("Hotplug/veth/berth ms", "veth, from the call that makes it to the first frame forwarded", "ms", "5")
	figure("Hotplug/veth/berth after-ms", "veth, from when it is made and up", "ms", "-")
	figure("Hotplug/tap/edit ms", "tap without a berth", "ms", "-")
	figure("Hotplug/veth/edit ms", "veth without a berth", "ms", "-")
	figure("Heal median-ms", "RSTP ring of three, a cable is cut: until frames flow, median", "ms", "1000")
	figure("Heal slowest-ms", "the same, the slowest of 10", "ms", "1000")
}

/^Benchmark/ {
	name = $1
	sub(/^Benchmark/, "", name)
	sub(/-[0-9]+$/, "", name)
	for (i = 3; i < NF; i += 2)
		value[name " " $(i + 1)] = $i
	next
}
/FAIL|panic/ { failed = 1 }
{ print > "/dev/stderr" }

END {
	print "| figure | must | measured |"
	print "|---|---|---|"
	for (i = 1; i <= n; i++) {
		name = order[i]
		if (!(name in value)) {
			failed = 1
			value[name] = "none"
		}
		unit = of[name] == "" ? "" : " " of[name]
		printf "| %s | %s | %s |\n", title[name], must[name] == "-" ? "-" : must[name] unit, value[name] unit
	}
	exit failed
}
