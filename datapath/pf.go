// SPDX-License-Identifier: BSD-2-Clause

package datapath

// pfFeatures are the features of pf.
const pfFeatures = kernelFeatureFEATURE_PF | kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_TABLES |
	kernelFeatureFEATURE_PF_LOG | kernelFeatureFEATURE_PF_SOURCES | kernelFeatureFEATURE_PF_REWRITE |
	kernelFeatureFEATURE_ETHER

// Of bpf/types.h and bpf/pf_source.h.
const (
	pfWays    = 16   // states of a bucket
	pfFlushes = 1024 // sources whose states are removed at a time
)
