// SPDX-License-Identifier: BSD-2-Clause

package datapath

func sourceGuard(_ *Config, p []*Port) { p[0].Flags |= PortSrcGuard }

func dhcpGuard(c *Config, _ []*Port) { c.Flags |= uint32(BridgeDHCPGuard) }

func raGuard(c *Config, _ []*Port) { c.Flags |= uint32(BridgeRAGuard) }

func suppress(c *Config, _ []*Port) { c.Flags |= uint32(BridgeSuppress) }
