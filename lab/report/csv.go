// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// WriteCSV writes a header, and a row for each sample. Missing values are empty. Columns
// "more:NAME" come from Sample.More; "intervals" and "cores_busy" are lists of values separated by
// spaces, and "drops" is a list of PLACE=FRAMES separated by semicolons. Cases without samples have
// no row.
func (r *Report) WriteCSV(w io.Writer) error {
	var more []string // the names in Sample.More
	for _, g := range r.Groups {
		for _, c := range g.Cases {
			for _, s := range c.Samples {
				more = append(more, slices.Collect(maps.Keys(s.More))...)
			}
		}
	}
	slices.Sort(more)
	more = slices.Compact(more)

	out := csv.NewWriter(w)
	header := []string{"group", "label", "fabric", "workload", "setup", "unit", "lower_is_better", "counter", "round", "value",
		"seconds", "bytes", "frames", "cpu_user", "cpu_system", "cpu_softirq", "cpu_idle", "cpu_steal", "cpu_others", "context_switches",
		"cycles", "instructions", "drops", "cores_busy", "intervals"}
	for _, name := range more {
		header = append(header, "more:"+name)
	}
	write := func(cells []string) error {
		for i, text := range cells {
			cells[i] = printable(text)
		}
		return out.Write(cells)
	}
	if err := write(header); err != nil {
		return err
	}
	for _, g := range r.Groups {
		for _, c := range g.Cases {
			for _, s := range c.Samples {
				line := []string{g.Name, c.Label, c.Fabric, c.Workload, c.Setup, c.Unit, strconv.FormatBool(c.Lower), c.Counter,
					strconv.Itoa(s.Round), exact(s.Value), positive(s.Seconds), positive(s.Bytes), positive(s.Frames),
					exact(s.CPU.User), exact(s.CPU.System), exact(s.CPU.Softirq), exact(s.CPU.Idle), exact(s.CPU.Steal), exact(s.CPU.Others),
					positive(s.Switches), positive(float64(s.Cycles)), positive(float64(s.Instructions))}
				var drops, busy, intervals []string
				for _, at := range slices.Sorted(maps.Keys(s.Drops)) {
					drops = append(drops, fmt.Sprintf("%s=%d", at, s.Drops[at]))
				}
				for _, core := range s.Cores {
					busy = append(busy, exact(core.Busy()))
				}
				for _, v := range s.Intervals {
					intervals = append(intervals, exact(v))
				}
				line = append(line, strings.Join(drops, ";"), strings.Join(busy, " "), strings.Join(intervals, " "))
				for _, name := range more {
					cell := ""
					if v, ok := s.More[name]; ok {
						cell = exact(v)
					}
					line = append(line, cell)
				}
				if err := write(line); err != nil {
					return err
				}
			}
		}
	}
	out.Flush()
	return out.Error()
}

// exact formats a value so that parsing it gives the same value.
func exact(v float64) string {
	if a := math.Abs(v); a >= huge || a < 1/huge && a > 0 {
		return strconv.FormatFloat(v, 'g', -1, 64)
	}
	return strconv.FormatFloat(v, 'f', -1, 64)
}

// positive is exact, but empty for 0, which means not measured.
func positive(v float64) string {
	if v == 0 {
		return ""
	}
	return exact(v)
}
