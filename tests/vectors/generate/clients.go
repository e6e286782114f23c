package main

import (
	"crypto/elliptic"
)

// maker collects cases of one kind.
type maker struct {
	cases   []golden
	verdict func(input) expected
	host    string
}

// hand overrules Go 1.19 where the Go of Kubernetes 1.36 (1.26) decides otherwise.
type hand struct {
	accepted bool
	why      string
}

func (m *maker) add(name string, roots, chain [][]byte, newer ...hand) {
	in := input{Roots: roots, Chain: chain, Host: m.host, At: at.Unix()}
	result := m.verdict(in)
	for _, n := range newer {
		if n.accepted {
			panic("a user would be needed: " + name)
		}
		if !result.Accepted {
			panic("no difference: " + name)
		}
		result = expected{Why: n.why, By: "hand"}
	}
	m.cases = append(m.cases, golden{Name: name, Input: in, Expected: result})
}

func newerRefuses(why string) hand { return hand{false, why} }

func list(certificates ...[]byte) [][]byte { return certificates }

// The usual certificates, to be changed.

func rootCert(cn string, k key, change ...func(*cert)) []byte {
	c := cert{
		version: v3, serial: integer(1), subject: name(cn), issuer: name(cn),
		from: utc("200101000000Z"), to: utc("490101000000Z"), key: k,
		extensions: [][]byte{isCa(-1), keyUsage(digitalSignature | keyEncipherment | certSign)},
	}
	for _, f := range change {
		f(&c)
	}
	return c.signedBy(k)
}

func intermediate(cn string, k key, issuer string, by key, change ...func(*cert)) []byte {
	c := cert{
		version: v3, serial: integer(2), subject: name(cn), issuer: name(issuer),
		from: utc("200101000000Z"), to: utc("480101000000Z"), key: k,
		extensions: [][]byte{isCa(-1), keyUsage(certSign)},
	}
	for _, f := range change {
		f(&c)
	}
	return c.signedBy(by)
}

func leaf(issuer string, by key, change ...func(*cert)) []byte {
	c := cert{
		version: v3, serial: integer(3), subject: name("alice", "dev", "ops"), issuer: name(issuer),
		from: utc("250101000000Z"), to: utc("300101000000Z"), key: ecKey("alice"),
		extensions: [][]byte{keyUsage(digitalSignature), purposes(clientAuth)},
	}
	for _, f := range change {
		f(&c)
	}
	return c.signedBy(by)
}

func with(extensions ...[]byte) func(*cert) {
	return func(c *cert) { c.extensions = extensions }
}
func plus(extensions ...[]byte) func(*cert) {
	return func(c *cert) { c.extensions = append(append([][]byte{}, c.extensions...), extensions...) }
}
func subject(der []byte) func(*cert) { return func(c *cert) { c.subject = der } }
func valid(from, to string) func(*cert) {
	return func(c *cert) { c.from, c.to = utc(from), utc(to) }
}

func clientCases() []golden {
	m := &maker{verdict: client}
	m.chains()
	m.issuers()
	m.purposes()
	m.leaves()
	m.subjects()
	m.names()
	m.parsing()
	m.extensionParsing()
	m.algorithms()
	m.tools()
	m.mutations()
	return m.cases
}

func (m *maker) chains() {
	k1, k2, k3 := ecKey("root"), ecKey("sub"), ecKey("subsub")
	root := rootCert("root", k1)
	sub := intermediate("sub", k2, "root", k1)
	subsub := intermediate("subsub", k3, "sub", k2)
	byRoot, bySub, bySubsub := leaf("root", k1), leaf("sub", k2), leaf("subsub", k3)
	other := rootCert("other", ecKey("other"))
	m.add("issued by the root", list(root), list(byRoot))
	m.add("the second root of a file", list(other, root), list(byRoot))
	m.add("a root that is there twice", list(root, root), list(byRoot))
	m.add("no root of this name", list(other), list(byRoot))
	m.add("a root of the same name with another key", list(rootCert("root", ecKey("other"))), list(byRoot))
	m.add("two roots of one name, the second one signed", list(rootCert("root", ecKey("other")), root), list(byRoot))
	m.add("the root is sent too", list(root), list(byRoot, root))
	m.add("one intermediate", list(root), list(bySub, sub))
	m.add("the intermediate is missing", list(root), list(bySub))
	m.add("two intermediates", list(root), list(bySubsub, subsub, sub))
	m.add("two intermediates out of order", list(root), list(bySubsub, sub, subsub))
	m.add("an intermediate twice", list(root), list(bySub, sub, sub))
	m.add("unrelated certificates in the chain", list(root), list(bySub, other, sub, byRoot))
	m.add("an expired unrelated certificate in the chain", list(root),
		list(bySub, rootCert("old", ecKey("old"), valid("200101000000Z", "210101000000Z")), sub))
	m.add("a malformed unrelated certificate in the chain", list(root), list(bySub, []byte{0x30, 0}, sub))
	m.add("the intermediate is the trusted one", list(sub), list(bySub))
	m.add("the intermediate is the trusted one and is sent", list(sub), list(bySub, sub))
	m.add("the lower intermediate is trusted", list(subsub), list(bySubsub, sub))
	m.add("only the leaf is trusted", list(byRoot), list(byRoot))
	m.add("only the leaf is trusted, another is sent", list(byRoot), list(leaf("root", k1, subject(name("bob")))))
	m.add("the leaf is trusted and for servers only", list(leaf("root", k1, with(purposes(serverAuth)))),
		list(leaf("root", k1, with(purposes(serverAuth)))))
	expired := leaf("root", k1, valid("200101000000Z", "210101000000Z"))
	m.add("the leaf is trusted and has expired", list(expired), list(expired))
	m.add("a root presents itself", list(root), list(root))
	selfSigned := leaf("alice", ecKey("alice"), subject(name("alice")))
	m.add("a self-signed leaf that is trusted", list(selfSigned), list(selfSigned))
	m.add("a self-signed leaf that is not trusted", list(root), list(selfSigned))

	crossed := intermediate("root", k1, "other", ecKey("other"))
	m.add("a cross-signed root by the other root", list(other), list(byRoot, crossed))
	m.add("a cross-signed root by both roots", list(other, root), list(byRoot, crossed))
	m.add("a cross-signed root, the other has expired",
		list(rootCert("other", ecKey("other"), valid("200101000000Z", "210101000000Z")), root), list(byRoot, crossed))
	expiredSub := intermediate("sub", k2, "root", k1, valid("200101000000Z", "210101000000Z"))
	m.add("two intermediates of one key, one has expired", list(root), list(bySub, expiredSub, sub))
	m.add("the only intermediate has expired", list(root), list(bySub, expiredSub))
	limited := intermediate("sub", k2, "root", k1, with(isCa(0), keyUsage(crlSign)))
	m.add("two intermediates of one key, one may not sign", list(root), list(bySub, limited, sub))
	m.add("two roots of one key, the first has expired",
		list(rootCert("root", k1, valid("200101000000Z", "210101000000Z")), root), list(byRoot))
	m.add("two roots of one key, the first is for servers",
		list(rootCert("root", k1, plus(purposes(serverAuth))), root), list(byRoot))
	a := intermediate("a", ecKey("a"), "b", ecKey("b"))
	b := intermediate("b", ecKey("b"), "a", ecKey("a"))
	m.add("a loop of two intermediates", list(root), list(leaf("a", ecKey("a")), a, b))
	m.add("a loop with a way out", list(root), list(leaf("a", ecKey("a")), a, b,
		intermediate("b", ecKey("b"), "root", k1)))
	m.add("a self-issued intermediate with another key", list(root),
		list(leaf("root", k2), intermediate("root", k2, "root", k1)))

	for _, depth := range []int{5, 6, 7, 8, 9, 12} {
		chain := [][]byte{}
		issuer, by := "root", k1
		for i := 0; i < depth; i++ {
			cn := string(rune('a' + i))
			k := ecKey("deep" + cn)
			chain = append([][]byte{intermediate(cn, k, issuer, by)}, chain...)
			issuer, by = cn, k
		}
		chain = append([][]byte{leaf(issuer, by)}, chain...)
		m.add(string(rune('0'+depth/10))+string(rune('0'+depth%10))+" intermediates", list(root), chain)
	}
	var wrong [][]byte
	for i := 0; i < 120; i++ {
		wrong = append(wrong, intermediate("sub", ecKey("w"+string(rune(i))), "root", k1,
			func(c *cert) { c.extensions = nil; c.serial = integer(int64(i + 10)) }))
	}
	m.add("120 wrong intermediates before the right one", list(root),
		append(append(list(bySub), wrong...), sub))
	wrong = wrong[:90]
	m.add("90 wrong intermediates before the right one", list(root),
		append(append(list(bySub), wrong...), sub))
}

func (m *maker) issuers() {
	k1, k2, k3 := ecKey("root"), ecKey("sub"), ecKey("subsub")
	root := rootCert("root", k1)
	byRoot, bySub := leaf("root", k1), leaf("sub", k2)
	changes := []struct {
		name   string
		change func(*cert)
	}{
		{"has expired", valid("200101000000Z", "260601115959Z")},
		{"is not valid yet", valid("260601120001Z", "300101000000Z")},
		{"begins now", valid("260601120000Z", "300101000000Z")},
		{"ends now", valid("250601120000Z", "260601120000Z")},
		{"ends before it begins", valid("300101000000Z", "200101000000Z")},
		{"has CA:FALSE", with(extension(ce(19), true, seq(no)), keyUsage(certSign))},
		{"has empty basic constraints", with(extension(ce(19), true, seq()), keyUsage(certSign))},
		{"has no basic constraints", with(keyUsage(certSign))},
		{"has no extensions", with()},
		{"has CA:TRUE that is not critical", with(extension(ce(19), false, seq(yes)), keyUsage(certSign))},
		{"may only sign data", with(isCa(-1), keyUsage(digitalSignature))},
		{"may only sign revocations", with(isCa(-1), keyUsage(crlSign))},
		{"may do everything but sign certificates", with(isCa(-1), keyUsage(0xfb))},
		{"may sign certificates and revocations", with(isCa(-1), keyUsage(certSign|crlSign))},
		{"has no key usage", with(isCa(-1))},
		{"has an empty key usage", with(isCa(-1), keyUsage(0))},
		{"may only decipher", with(isCa(-1), extension(ce(15), true, bits(7, 0, 0x80)))},
		{"has an unknown bit of key usage only", with(isCa(-1), extension(ce(15), true, bits(6, 0, 0x40)))},
		{"is of path length 0", with(isCa(0), keyUsage(certSign))},
		{"has an unknown critical extension", plus(extension(oid(1, 2, 3), true, []byte{5, 0}))},
		{"has an unknown extension", plus(extension(oid(1, 2, 3), false, []byte{5, 0}))},
		{"has a Netscape type that is critical", plus(extension(oid(2, 16, 840, 1, 113730, 1, 1), true, bits(0, 7)))},
		{"is for clients", plus(purposes(clientAuth))},
		{"is for servers", plus(purposes(serverAuth))},
		{"is for clients and servers", plus(purposes(serverAuth, clientAuth))},
		{"is for any purpose", plus(purposes(anyPurpose))},
		{"is for servers and any purpose", plus(purposes(serverAuth, anyPurpose))},
		{"is for an unknown purpose", plus(purposes(unknownUse))},
		{"is for an unknown purpose and clients", plus(purposes(unknownUse, clientAuth))},
		{"is for no purpose", plus(purposes())},
		{"is for servers, which is critical", plus(extension(ce(37), true, seq(serverAuth)))},
		{"has policies", plus(extension(ce(32), false, seq(seq(oid(1, 2, 3)))))},
		{"has critical policies", plus(extension(ce(32), true, seq(seq(oid(1, 2, 3)))))},
		{"has an alternative name", plus(san(dns("ca.example.com")))},
		{"is of version 1", func(c *cert) { c.version = nil; c.extensions = nil }},
		{"is of version 2", func(c *cert) { c.version = der(0xa0, integer(1)); c.extensions = nil }},
		{"is of version 1 with extensions", func(c *cert) { c.version = nil }},
		{"is of version 2 with extensions", func(c *cert) { c.version = der(0xa0, integer(1)) }},
	}
	for _, c := range changes {
		m.add("a root that "+c.name, list(rootCert("root", k1, c.change)), list(byRoot))
		m.add("an intermediate that "+c.name, list(root), list(bySub, intermediate("sub", k2, "root", k1, c.change)))
	}
	// Newer versions of Go know these, so that they may be critical.
	for _, critical := range []bool{false, true} {
		for _, c := range []struct {
			name  string
			value []byte
		}{
			{"policy constraints of mappings", extension(ce(36), critical, seq(der(0x81, []byte{0})))},
			{"inhibit any policy", extension(ce(54), critical, integer(0))},
			{"policy mappings", extension(ce(33), critical, seq(seq(oid(1, 2, 3), oid(1, 2, 4))))},
		} {
			label := "an intermediate with " + c.name
			chain := list(bySub, intermediate("sub", k2, "root", k1, plus(c.value)))
			if critical {
				m.accept(label+" that is critical", list(root), chain,
					"known and handled since Go 1.24")
			} else {
				m.add(label, list(root), chain)
			}
		}
	}
	m.add("a policy is required", list(root), list(bySub, intermediate("sub", k2, "root", k1,
		plus(extension(ce(36), false, seq(der(0x80, []byte{0})))))), newerRefuses("policies are verified since Go 1.24"))

	// Path lengths.
	length := func(n int) func(*cert) { return with(isCa(n), keyUsage(certSign)) }
	sub := intermediate("sub", k2, "root", k1)
	subsub := intermediate("subsub", k3, "sub", k2)
	bySubsub := leaf("subsub", k3)
	m.add("path length 1 at the root, one intermediate", list(rootCert("root", k1, length(1))), list(bySub, sub))
	m.add("path length 0 at the root, one intermediate", list(rootCert("root", k1, length(0))), list(bySub, sub))
	m.add("path length 1 at the root, two intermediates", list(rootCert("root", k1, length(1))), list(bySubsub, subsub, sub))
	m.add("path length 2 at the root, two intermediates", list(rootCert("root", k1, length(2))), list(bySubsub, subsub, sub))
	m.add("path length 300 at the root", list(rootCert("root", k1, length(300))), list(bySubsub, subsub, sub))
	m.add("path length 0 at the upper of two intermediates", list(root),
		list(bySubsub, subsub, intermediate("sub", k2, "root", k1, length(0))))
	m.add("path length 0 at the lower of two intermediates", list(root),
		list(bySubsub, intermediate("subsub", k3, "sub", k2, length(0)), sub))
	m.add("path length 0 and a self-issued intermediate", list(rootCert("root", k1, length(0))),
		list(leaf("root", k2), intermediate("root", k2, "root", k1)))
	m.add("a path length without CA:TRUE", list(rootCert("root", k1,
		with(extension(ce(19), true, seq(integer(0)))))), list(byRoot))
	m.add("a path length of two bytes", list(rootCert("root", k1,
		with(extension(ce(19), true, seq(yes, der(2, []byte{1, 0, 0})))))), list(bySub, sub))
	m.add("an intermediate that is a root's leaf", list(root),
		list(leaf("alice", ecKey("alice"), subject(name("root", "system:masters"))), leaf("root", k1, subject(name("alice")))))
	m.add("a CA that only signs data signs for an administrator", list(root), list(
		leaf("sub", k2, subject(name("root", "system:masters"))),
		intermediate("sub", k2, "root", k1, with(isCa(-1), keyUsage(digitalSignature)))))
	m.add("the intermediate's name is spelled in another string type", list(root), list(bySub,
		intermediate("sub", k2, "root", k1, subject(seq(attribute(cnOid, 19, "sub"))))))
	m.add("the intermediate's name is in another case", list(root), list(bySub,
		intermediate("SUB", k2, "root", k1)))
	m.add("the signature of the leaf is by another key", list(root), list(leaf("root", k2)))
	m.add("the signature of the intermediate is by another key", list(root), list(bySub, intermediate("sub", k2, "root", k3)))
	skid := func(id string) []byte { return extension(ce(14), false, octets([]byte(id))) }
	akid := func(id string) []byte { return extension(ce(35), false, seq(der(0x80, []byte(id)))) }
	m.add("key identifiers that match", list(rootCert("root", k1, plus(skid("one")))), list(leaf("root", k1, plus(akid("one")))))
	m.add("key identifiers that do not match", list(rootCert("root", k1, plus(skid("one")))), list(leaf("root", k1, plus(akid("two")))))
	m.add("the authority's key identifier names issuer and serial number", list(root), list(leaf("root", k1,
		plus(extension(ce(35), false, seq(der(0xa1, directory(name("root"))), der(0x82, []byte{1})))))))
}

// accept is for what Go 1.19 refuses and newer versions accept: the usual user is expected.
func (m *maker) accept(name string, roots, chain [][]byte, why string) {
	in := input{Roots: roots, Chain: chain, Host: m.host, At: at.Unix()}
	if m.verdict(in).Accepted {
		panic("no difference: " + name)
	}
	result := expected{Accepted: true, By: "hand", Why: why}
	if m.host == "" {
		result.Name, result.Groups = "alice", []string{"dev", "ops"}
	}
	m.cases = append(m.cases, golden{Name: name, Input: in, Expected: result})
}

func (m *maker) purposes() {
	k1, k2 := ecKey("root"), ecKey("sub")
	root := rootCert("root", k1)
	for _, c := range []struct {
		name   string
		leaf   []byte
		issuer []byte
	}{
		{"none", nil, nil},
		{"any", purposes(anyPurpose), nil},
		{"clients", purposes(clientAuth), nil},
		{"servers", purposes(serverAuth), nil},
		{"servers and clients", purposes(serverAuth, clientAuth), nil},
		{"unknown", purposes(unknownUse), nil},
		{"unknown and clients", purposes(unknownUse, clientAuth), nil},
		{"code", purposes(codeSigning), nil},
		{"empty", purposes(), nil},
		{"critical clients", extension(ce(37), true, seq(clientAuth)), nil},
		{"none below servers", nil, purposes(serverAuth)},
		{"any below servers", purposes(anyPurpose), purposes(serverAuth)},
		{"none below clients", nil, purposes(clientAuth)},
		{"any below clients", purposes(anyPurpose), purposes(clientAuth)},
		{"clients below any", purposes(clientAuth), purposes(anyPurpose)},
		{"clients below unknown", purposes(clientAuth), purposes(unknownUse)},
		{"servers below clients", purposes(serverAuth), purposes(clientAuth)},
	} {
		change := func(extra []byte) func(*cert) {
			if extra == nil {
				return with(keyUsage(digitalSignature))
			}
			return with(keyUsage(digitalSignature), extra)
		}
		if c.issuer == nil {
			m.add("purpose: "+c.name, list(root), list(leaf("root", k1, change(c.leaf))))
			continue
		}
		m.add("purpose: "+c.name+", of the root", list(rootCert("root", k1, plus(c.issuer))),
			list(leaf("root", k1, change(c.leaf))))
		m.add("purpose: "+c.name+", of the intermediate", list(root),
			list(leaf("sub", k2, change(c.leaf)), intermediate("sub", k2, "root", k1, plus(c.issuer))))
	}
}

func (m *maker) leaves() {
	k1 := ecKey("root")
	root := rootCert("root", k1)
	for _, c := range []struct {
		name   string
		change func(*cert)
	}{
		{"is a CA", plus(isCa(-1))},
		{"is a CA of path length 0", plus(isCa(0))},
		{"has CA:FALSE", plus(extension(ce(19), true, seq()))},
		{"has CA:FALSE and a path length", plus(extension(ce(19), true, seq(integer(0))))},
		{"may only encipher keys", with(keyUsage(keyEncipherment), purposes(clientAuth))},
		{"may only sign certificates", with(keyUsage(certSign), purposes(clientAuth))},
		{"has no extensions", with()},
		{"is of version 1", func(c *cert) { c.version, c.extensions = nil, nil }},
		{"is of version 2", func(c *cert) { c.version, c.extensions = der(0xa0, integer(1)), nil }},
		{"is of version 1 with the purpose of servers", func(c *cert) {
			c.version = nil
			c.extensions = [][]byte{purposes(serverAuth)}
		}},
		{"has unique identifiers", func(c *cert) {
			c.beforeExtensions = append(der(0x81, []byte{0, 1}), der(0x82, []byte{0, 2})...)
		}},
		{"has critical policies", plus(extension(ce(32), true, seq(seq(oid(1, 2, 3)))))},
		{"has an unknown critical extension", plus(extension(oid(1, 2, 3), true, []byte{5, 0}))},
		{"has an unknown extension", plus(extension(oid(1, 2, 3), false, []byte("no DER")))},
		{"has a critical alternative name", plus(extension(ce(17), true, seq(dns("a"))))},
		{"has a critical alternative name of an unknown kind", plus(extension(ce(17), true, seq(der(0x88, []byte{1}))))},
		{"has a critical empty alternative name", plus(extension(ce(17), true, seq()))},
		{"has an empty alternative name", plus(san())},
		{"has name constraints", plus(constraints(true, permitted(dns("a"))))},
		{"has expired", valid("200101000000Z", "260601115959Z")},
		{"is not valid yet", valid("260601120001Z", "300101000000Z")},
		{"ends now", valid("200101000000Z", "260601120000Z")},
		{"has no end", func(c *cert) { c.to = der(0x18, []byte("99991231235959Z")) }},
		{"begins in 1950", valid("500101000000Z", "300101000000Z")},
		{"ends in 2049", valid("200101000000Z", "491231235959Z")},
		{"has times without seconds", valid("2001010000Z", "3001010000Z")},
		{"has times with an offset", valid("200101000000+0100", "300101000000-0130")},
		{"has times with an offset of none", valid("200101000000+0000", "300101000000Z")},
		{"has times without a zone", valid("200101000000", "300101000000Z")},
		{"has times with a fraction", func(c *cert) { c.to = der(0x18, []byte("20300101000000.5Z")) }},
		{"has a generalized time before 2050", func(c *cert) { c.to = der(0x18, []byte("20300101000000Z")) }},
		{"ends on a day that is none", valid("200101000000Z", "300230000000Z")},
		{"ends on the 29th of February", valid("200101000000Z", "280229000000Z")},
		{"ends at second 60", valid("200101000000Z", "300101000060Z")},
		{"ends in a time of another type", func(c *cert) { c.to = der(0x16, []byte("300101000000Z")) }},
	} {
		m.add("a leaf that "+c.name, list(root), list(leaf("root", k1, c.change)))
	}
}

func (m *maker) subjects() {
	k1 := ecKey("root")
	root := rootCert("root", k1)
	cn := func(tag byte, value string) []byte { return attribute(cnOid, tag, value) }
	o := func(tag byte, value string) []byte { return attribute(oOid, tag, value) }
	ou := func(tag byte, value string) []byte { return attribute(ouOid, tag, value) }
	uid := func(tag byte, value string) []byte { return attribute(uidOid, tag, value) }
	for _, c := range []struct {
		name  string
		value []byte
	}{
		{"only a name", seq(cn(12, "alice"))},
		{"nothing", seq()},
		{"only groups", seq(o(12, "dev"))},
		{"an empty name", seq(cn(12, ""))},
		{"a name of one blank", seq(cn(12, " "))},
		{"a name with blanks around it", seq(cn(12, " alice "))},
		{"a name with a line break", seq(cn(12, "alice\nbob"))},
		{"a name with a zero", seq(cn(12, "alice\x00bob"))},
		{"a name beyond ASCII", seq(cn(12, "ålice"))},
		{"two names", seq(cn(12, "alice"), cn(12, "bob"))},
		{"two names, the last one empty", seq(cn(12, "alice"), cn(12, ""))},
		{"two names in one set", seq(set(seq(cnOid, der(12, []byte("alice"))), seq(cnOid, der(12, []byte("bob")))))},
		{"no groups", name("alice")},
		{"an empty group", name("alice", "")},
		{"an empty group among others", name("alice", "dev", "", "ops")},
		{"two empty groups", name("alice", "", "")},
		{"a group of one blank", name("alice", " ")},
		{"a group with blanks around it", name("alice", " system:masters ")},
		{"a group with a tab", name("alice", "\tsystem:masters")},
		{"a group with a line break", name("alice", "dev\n")},
		{"a group with a zero", name("alice", "system:masters\x00")},
		{"a group twice", name("alice", "dev", "dev")},
		{"a group with a comma", name("alice", "a,b")},
		{"a group beyond ASCII", name("alice", "dév", "\u00a0", "\u200b")},
		{"groups in another order", name("alice", "z", "a")},
		{"two groups in one set", seq(set(seq(oOid, der(12, []byte("a"))), seq(oOid, der(12, []byte("b")))), cn(12, "alice"))},
		{"a set with group and name", seq(set(seq(oOid, der(12, []byte("a"))), seq(cnOid, der(12, []byte("alice")))))},
		{"an empty set", seq(cn(12, "alice"), set())},
		{"PrintableString", seq(o(19, "dev"), cn(19, "alice"))},
		{"PrintableString with an asterisk and an ampersand", seq(o(19, "*"), cn(19, "a&b"))},
		{"PrintableString with an at sign", seq(cn(19, "alice@example.com"))},
		{"PrintableString with an underscore", seq(cn(19, "a_b"))},
		{"IA5String", seq(o(22, "dev"), cn(22, "alice@example.com"))},
		{"IA5String beyond ASCII", seq(cn(22, "\xe5lice"))},
		{"NumericString", seq(o(18, "1 2"), cn(18, "12"))},
		{"NumericString with letters", seq(cn(18, "alice"))},
		{"T61String", seq(o(20, "dev"), cn(20, "alice"))},
		{"BMPString", seq(o(30, "\x00d"), cn(30, "\x00a\x20\xac"))},
		{"BMPString with a terminator", seq(cn(30, "\x00a\x00\x00"))},
		{"BMPString of an odd length", seq(cn(30, "\x00a\x00"))},
		{"UTF8String that is none", seq(cn(12, "\xff"))},
		{"UTF8String with a surrogate", seq(cn(12, "\xed\xa0\x80"))},
		{"another attribute of an invalid string", seq(ou(19, "a@b"), cn(12, "alice"))},
		{"a name after an attribute with more in it", seq(set(seq(ouOid, der(12, []byte("x")), der(12, []byte("y")))), cn(12, "alice"))},
		{"an attribute without a value", seq(set(seq(ouOid)), cn(12, "alice"))},
		{"an attribute of no kind", seq(set(seq(der(6), der(12, []byte("x")))), cn(12, "alice"))},
		{"a set that is a sequence", seq(seq(seq(cnOid, der(12, []byte("alice")))))},
		{"a length that is not minimal", seq(set(seq(cnOid, []byte{12, 0x81, 5}, []byte("alice"))))},
		{"a length of two bytes that is not minimal", seq(set(seq(cnOid, []byte{12, 0x82, 0, 5}, []byte("alice"))))},
		{"an indefinite length", seq(set(append([]byte{0x30, 0x80}, append(append(append([]byte{}, cnOid...), der(12, []byte("alice"))...), 0, 0)...)))},
		{"a uid", seq(o(12, "dev"), uid(12, "u-1"), cn(12, "alice"))},
		{"an empty uid", seq(uid(12, ""), cn(12, "alice"))},
		{"a uid of one blank", seq(uid(12, " "), cn(12, "alice"))},
		{"two uids", seq(uid(12, "a"), uid(12, "b"), cn(12, "alice"))},
		{"a long name", seq(cn(12, string(seededText(300))))},
		{"the name in lower case of its kind", seq(attribute(oid(2, 5, 4, 4), 12, "surname"), cn(12, "alice"))},
	} {
		m.add("a subject with "+c.name, list(root), list(leaf("root", k1, subject(c.value))))
	}
	m.add("a subject whose string types newer versions read differently", list(root),
		list(leaf("root", k1, subject(seq(cn(20, "\xe5lice"))))), newerRefuses("Latin-1 since Go 1.25, bytes before: weir accepts neither"))
	m.add("a BMPString with surrogates", list(root),
		list(leaf("root", k1, subject(seq(cn(30, "\xd8\x3d\xde\x00"))))), newerRefuses("not accepted since Go 1.25"))
	m.add("a name that is no string", list(root), list(leaf("root", k1, subject(seq(cn(4, "alice"))))))
	m.add("a name of one UniversalString", list(root), list(leaf("root", k1, subject(seq(cn(28, "\x00\x00\x00a"))))))
}

func seededText(n int) []byte {
	text := seeded("text", n)
	for i := range text {
		text[i] = 'a' + text[i]%26
	}
	return text
}

func (m *maker) names() {
	k1, k2 := ecKey("root"), ecKey("sub")
	root := rootCert("root", k1)
	d := func(parts ...[]byte) []byte { return constraints(true, parts...) }
	for _, c := range []struct {
		name       string
		constraint []byte
		names      [][]byte
	}{
		{"no alternative name", d(permitted(dns("example.com"))), nil},
		{"DNS: permitted itself", d(permitted(dns("example.com"))), list(dns("example.com"))},
		{"DNS: permitted below", d(permitted(dns("example.com"))), list(dns("a.example.com"))},
		{"DNS: not permitted", d(permitted(dns("example.com"))), list(dns("example.org"))},
		{"DNS: not at a label", d(permitted(dns("example.com"))), list(dns("badexample.com"))},
		{"DNS: another case", d(permitted(dns("Example.COM"))), list(dns("a.eXample.com"))},
		{"DNS: leading dot, itself", d(permitted(dns(".example.com"))), list(dns("example.com"))},
		{"DNS: leading dot, below", d(permitted(dns(".example.com"))), list(dns("a.example.com"))},
		{"DNS: empty permitted", d(permitted(dns(""))), list(dns("anything"))},
		{"DNS: empty excluded", d(excluded(dns(""))), list(dns("anything"))},
		{"DNS: excluded", d(excluded(dns("example.com"))), list(dns("a.example.com"))},
		{"DNS: not excluded", d(excluded(dns("example.com"))), list(dns("example.org"))},
		{"DNS: one of two is not permitted", d(permitted(dns("example.com"))), list(dns("example.com"), dns("a.org"))},
		{"DNS: two permitted", d(permitted(dns("a.org"), dns("example.com"))), list(dns("example.com"), dns("a.org"))},
		{"DNS: permitted and excluded", d(permitted(dns("example.com")), excluded(dns("bad.example.com"))), list(dns("a.bad.example.com"))},
		{"DNS: wildcard permitted", d(permitted(dns("example.com"))), list(dns("*.example.com"))},
		{"DNS: invalid name", d(permitted(dns("example.com"))), list(dns("a..example.com"))},
		{"DNS: trailing dot", d(permitted(dns("example.com"))), list(dns("example.com."))},
		{"DNS: blank", d(permitted(dns("example.com"))), list(dns("a b.example.com"))},
		{"DNS: an invalid name without constraints", nil, list(dns("a..b"))},
		{"IP: permitted", d(permitted(ip(10, 0, 0, 0, 255, 0, 0, 0))), list(ip(10, 1, 2, 3))},
		{"IP: not permitted", d(permitted(ip(10, 0, 0, 0, 255, 0, 0, 0))), list(ip(11, 1, 2, 3))},
		{"IP: excluded", d(excluded(ip(10, 0, 0, 0, 255, 0, 0, 0))), list(ip(10, 1, 2, 3))},
		{"IP: another family", d(permitted(ip(10, 0, 0, 0, 255, 0, 0, 0))), list(ip(0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1))},
		{"IP: everything excluded", d(excluded(ip(0, 0, 0, 0, 0, 0, 0, 0))), list(ip(10, 1, 2, 3))},
		{"IP: bits of the host", d(permitted(ip(10, 1, 2, 3, 255, 0, 0, 0))), list(ip(10, 9, 9, 9))},
		{"IP: a mask with gaps", d(permitted(ip(10, 0, 0, 0, 255, 0, 255, 0))), list(ip(10, 1, 2, 3))},
		{"IP: a mask of another length", d(permitted(ip(10, 0, 0, 0, 255, 0, 0))), list(ip(10, 1, 2, 3))},
		{"IP: other names are free", d(permitted(ip(10, 0, 0, 0, 255, 0, 0, 0))), list(dns("a"))},
		{"email: permitted host", d(permitted(email("example.com"))), list(email("a@example.com"))},
		{"email: not permitted host", d(permitted(email("example.com"))), list(email("a@example.org"))},
		{"email: permitted domain", d(permitted(email(".example.com"))), list(email("a@b.example.com"))},
		{"email: domain itself", d(permitted(email(".example.com"))), list(email("a@example.com"))},
		{"email: permitted address", d(permitted(email("a@example.com"))), list(email("a@EXAMPLE.com"))},
		{"email: another local part", d(permitted(email("a@example.com"))), list(email("A@example.com"))},
		{"email: excluded address", d(excluded(email("a@example.com"))), list(email("a@example.com"))},
		{"email: excluded host", d(excluded(email("example.com"))), list(email("a@example.com"))},
		{"email: quoted", d(permitted(email("example.com"))), list(email("\"a b\"@example.com"))},
		{"email: invalid", d(permitted(email("example.com"))), list(email("a b@example.com"))},
		{"email: invalid, only DNS is constrained", d(permitted(dns("example.com"))), list(email("a b@example.com"))},
		{"email: invalid without constraints", nil, list(email("a b@example.com"))},
		{"email: invalid constraint", d(permitted(email("a b@example.com"))), list(dns("a"))},
		{"URI: permitted host", d(permitted(uri("example.com"))), list(uri("https://example.com/a"))},
		{"URI: port and user", d(permitted(uri("example.com"))), list(uri("https://u:p@example.com:8080/a"))},
		{"URI: not permitted", d(permitted(uri("example.com"))), list(uri("https://example.org/a"))},
		{"URI: domain", d(permitted(uri(".example.com"))), list(uri("spiffe://a.example.com/x"))},
		{"URI: excluded", d(excluded(uri("example.com"))), list(uri("https://example.com"))},
		{"URI: excluded below", d(excluded(uri("example.com"))), list(uri("https://a.example.com"))},
		{"URI: domain excluded, itself", d(excluded(uri(".example.com"))), list(uri("https://example.com"))},
		{"URI: an address", d(permitted(uri("example.com"))), list(uri("https://10.0.0.1/"))},
		{"URI: an IPv6 address", d(excluded(uri("example.com"))), list(uri("https://[::1]/"))},
		{"URI: no host", d(permitted(uri("example.com"))), list(uri("urn:uuid:1"))},
		{"URI: constraint is an address", d(permitted(uri("10.0.0.1"))), list(dns("a"))},
		{"directory: critical", d(permitted(directory(name("alice")))), nil},
		{"directory: not critical", constraints(false, permitted(directory(name("bob")))), nil},
		{"directory and DNS, not critical", constraints(false, permitted(directory(name("bob")), dns("example.com"))), list(dns("example.org"))},
		{"not critical", constraints(false, permitted(dns("example.com"))), list(dns("example.org"))},
		{"empty and critical", d(), nil},
		{"empty", constraints(false), nil},
		{"both subtrees empty", d(permitted(), excluded()), nil},
		{"trailing data", extension(ce(30), true, append(seq(permitted(dns("a"))), 5, 0)), nil},
		{"a minimum", d(der(0xa0, seq(dns("example.com"), der(0x80, []byte{0})))), list(dns("example.com"))},
		{"an unknown kind of name", d(permitted(der(0x88, []byte{1}))), nil},
		{"an unknown kind of name, not critical", constraints(false, permitted(der(0x88, []byte{1}))), nil},
		{"a DNS constraint beyond ASCII", d(permitted(dns("\xff"))), nil},
		{"an invalid DNS constraint", d(permitted(dns("a..b"))), nil},
		{"a DNS constraint with a trailing dot", d(permitted(dns("example.com."))), nil},
		{"a name of another kind", d(permitted(dns("example.com"))), list(der(0xa0, oid(1, 2, 3), der(0xa0, der(12, []byte("x")))))},
	} {
		change := plus()
		if c.names != nil {
			change = plus(san(c.names...))
		}
		issuer := plus()
		if c.constraint != nil {
			issuer = plus(c.constraint)
		}
		m.add("names of a root: "+c.name, list(rootCert("root", k1, issuer)), list(leaf("root", k1, change)))
		if len(c.name)%3 == 0 {
			m.add("names of an intermediate: "+c.name, list(root),
				list(leaf("sub", k2, change), intermediate("sub", k2, "root", k1, issuer)))
		}
	}
	m.add("names: an excluded subtree and a wildcard for it", list(rootCert("root", k1, plus(d(excluded(dns("a.example.com")))))),
		list(leaf("root", k1, plus(san(dns("*.example.com"))))), newerRefuses("CVE-2025-61727, Go 1.25.5"))
	m.add("names: a URI below a permitted host", list(rootCert("root", k1, plus(d(permitted(uri("example.com")))))),
		list(leaf("root", k1, plus(san(uri("spiffe://a.example.com/x"))))), newerRefuses("CVE-2026-78664, after Go 1.26.0"))
	m.add("names: an email below a permitted host", list(rootCert("root", k1, plus(d(permitted(email("example.com")))))),
		list(leaf("root", k1, plus(san(email("a@b.example.com"))))), newerRefuses("CVE-2026-78665, after Go 1.26.0"))
	m.add("names: a URI without a host below a constraint of DNS names", list(rootCert("root", k1, plus(d(permitted(dns("example.com")))))),
		list(leaf("root", k1, plus(san(uri("urn:uuid:1"))))), newerRefuses("all URIs are parsed since Go 1.26"))
	m.add("names: one empty subtree of two", list(rootCert("root", k1, plus(d(permitted(), excluded(dns("a")))))),
		list(leaf("root", k1)), hand{false, "a root that Go does not parse since 1.25"})
	m.add("names: of the intermediate itself", list(rootCert("root", k1, plus(d(permitted(dns("example.com")))))), list(
		leaf("sub", k2), intermediate("sub", k2, "root", k1, plus(san(dns("example.org"))))),
		newerRefuses("all names of a path are checked since Go 1.20"))
	m.add("names: two issuers with constraints", list(rootCert("root", k1, plus(d(permitted(dns("com")))))), list(
		leaf("sub", k2, plus(san(dns("a.example.com")))), intermediate("sub", k2, "root", k1, plus(d(permitted(dns("example.com")))))))
	m.add("names: two issuers with constraints that contradict", list(rootCert("root", k1, plus(d(permitted(dns("org")))))), list(
		leaf("sub", k2, plus(san(dns("a.example.com")))), intermediate("sub", k2, "root", k1, plus(d(permitted(dns("example.com")))))))
}

func (m *maker) parsing() {
	k1 := ecKey("root")
	root := rootCert("root", k1)
	for _, c := range []struct {
		name   string
		change func(*cert)
	}{
		{"serial number 0", func(c *cert) { c.serial = integer(0) }},
		{"serial number of 20 bytes", func(c *cert) { c.serial = der(2, seeded("serial", 20)[:1], make([]byte, 19)) }},
		{"serial number of 40 bytes", func(c *cert) { c.serial = der(2, append([]byte{1}, seeded("serial", 39)...)) }},
		{"serial number without bytes", func(c *cert) { c.serial = der(2) }},
		{"serial number that is not minimal", func(c *cert) { c.serial = der(2, []byte{0, 1}) }},
		{"serial number of another type", func(c *cert) { c.serial = der(4, []byte{1}) }},
		{"version 0 that is written", func(c *cert) { c.version = der(0xa0, integer(0)); c.extensions = nil }},
		{"version 4", func(c *cert) { c.version = der(0xa0, integer(3)) }},
		{"version -1", func(c *cert) { c.version = der(0xa0, der(2, []byte{0xff})) }},
		{"version with more in it", func(c *cert) { c.version = der(0xa0, integer(2), integer(2)) }},
		{"version that is not minimal", func(c *cert) { c.version = der(0xa0, der(2, []byte{0, 2})) }},
		{"data after the extensions", func(c *cert) { c.afterTbs = null }},
		{"data after the signature", func(c *cert) { c.afterAll = null }},
		{"another outer algorithm", func(c *cert) { c.outer = seq(oid(1, 2, 840, 10045, 4, 3, 3)) }},
		{"an algorithm with parameters", func(c *cert) { c.algorithm = seq(oid(1, 2, 840, 10045, 4, 3, 2), null) }},
		{"an unknown algorithm", func(c *cert) { c.algorithm = seq(oid(1, 2, 3)) }},
		{"an algorithm without a kind", func(c *cert) { c.algorithm = seq() }},
		{"a signature that is no bit string", func(c *cert) { c.signature = func(s []byte) []byte { return der(4, s[2:]) } }},
		{"a signature with bits in its padding", func(c *cert) {
			c.signature = func(s []byte) []byte { return bits(1, s[3:]...) }
		}},
		{"a signature with a flipped bit", func(c *cert) {
			c.signature = func(s []byte) []byte { s[len(s)-1] ^= 1; return s }
		}},
		{"a signature without bytes", func(c *cert) { c.signature = func([]byte) []byte { return bits(0) } }},
		{"a signature with data after it", func(c *cert) {
			c.signature = func(s []byte) []byte { return bits(0, append(s[3:], 0)...) }
		}},
		{"an empty sequence of extensions", func(c *cert) { c.rawExtensions = der(0xa3, seq()) }},
		{"extensions that are no sequence", func(c *cert) { c.rawExtensions = der(0xa3, set()) }},
		{"an empty element of extensions", func(c *cert) { c.rawExtensions = der(0xa3) }},
		{"an extension twice", plus(purposes(clientAuth))},
		{"an unknown extension twice", plus(extension(oid(1, 2, 3), false, nil), extension(oid(1, 2, 3), false, nil))},
		{"an extension that is critical in another way", plus(seq(oid(1, 2, 3), []byte{1, 1, 1}, octets(nil)))},
		{"an extension that is not critical in writing", plus(seq(oid(1, 2, 3), no, octets(nil)))},
		{"an extension without a value", plus(seq(oid(1, 2, 3)))},
		{"an extension with more in it", plus(seq(oid(1, 2, 3), octets(nil), null))},
		{"an extension of a kind that does not end", plus(seq(der(6, []byte{0x2a, 0x81}), octets(nil)))},
		{"an extension of a large kind", plus(seq(der(6, []byte{0x2a, 0x88, 0x80, 0x80, 0x80, 0}), octets(nil)))},
		{"an extension of a kind of 2^31-1", plus(seq(der(6, []byte{0x2a, 0x87, 0xff, 0xff, 0xff, 0x7f}), octets(nil)))},
		{"validity with three times", func(c *cert) { c.to = append(c.to, c.to...) }},
		{"an issuer of an invalid string", func(c *cert) { c.issuer = seq(attribute(cnOid, 19, "a@b")) }},
		{"a public key with bits in its padding", func(c *cert) {
			k := ecKey("alice").spki
			k = append([]byte{}, k...)
			k[len(k)-66] = 3
			c.spki = k
		}},
		{"a public key that is compressed", func(c *cert) {
			k := ecKey("alice").spki
			c.spki = seq(seq(oid(1, 2, 840, 10045, 2, 1), oid(1, 2, 840, 10045, 3, 1, 7)), bits(0, append([]byte{2}, k[len(k)-64:len(k)-32]...)...))
		}},
		{"a public key that is hybrid", func(c *cert) {
			k := ecKey("alice").spki
			c.spki = seq(seq(oid(1, 2, 840, 10045, 2, 1), oid(1, 2, 840, 10045, 3, 1, 7)), bits(0, append([]byte{6 | k[len(k)-1]&1}, k[len(k)-64:]...)...))
		}},
		{"a public key on an unknown curve", func(c *cert) {
			k := ecKey("alice").spki
			c.spki = seq(seq(oid(1, 2, 840, 10045, 2, 1), oid(1, 3, 132, 0, 10)), bits(0, k[len(k)-65:]...))
		}},
		{"an Ed25519 key with parameters", func(c *cert) { c.spki = seq(seq(oid(1, 3, 101, 112), null), bits(0, seeded("x", 32)...)) }},
		{"an Ed25519 key that is too short", func(c *cert) { c.spki = seq(seq(oid(1, 3, 101, 112)), bits(0, seeded("x", 31)...)) }},
		{"an RSA key without parameters", func(c *cert) { c.spki = rsaSpki(rsaPrivate(2048), nil) }},
		{"an RSA key with other parameters", func(c *cert) { c.spki = rsaSpki(rsaPrivate(2048), integer(0)) }},
		{"an RSA key with a negative modulus", func(c *cert) {
			c.spki = seq(seq(oid(1, 2, 840, 113549, 1, 1, 1), null), bits(0, seq(der(2, []byte{0x80, 1}), integer(65537))...))
		}},
		{"an RSA key with exponent 0", func(c *cert) {
			c.spki = seq(seq(oid(1, 2, 840, 113549, 1, 1, 1), null), bits(0, seq(bigInteger(rsaPrivate(2048).N), integer(0))...))
		}},
	} {
		m.add("parsing: "+c.name, list(root), list(leaf("root", k1, c.change)))
	}
	plain := leaf("root", k1)
	m.add("parsing: data after the certificate", list(root), list(append(append([]byte{}, plain...), 0)))
	m.add("parsing: a certificate that is cut", list(root), list(plain[:len(plain)-1]))
	m.add("parsing: a length that is not minimal", list(root), list(append([]byte{0x30, 0x83, 0}, plain[2:]...)))
	m.add("parsing: nothing", list(root), list([]byte{}))
	m.add("parsing: a negative serial number", list(root), list(leaf("root", k1,
		func(c *cert) { c.serial = der(2, []byte{0xff}) })))
	m.add("parsing: a negative serial number of an intermediate", list(root), list(leaf("sub", ecKey("sub")),
		intermediate("sub", ecKey("sub"), "root", k1, func(c *cert) { c.serial = der(2, []byte{0x80, 0}) })))
	m.add("parsing: an extension of a kind that is not minimal", list(root), list(leaf("root", k1,
		plus(seq(der(6, []byte{0x2a, 0x80, 1}), octets(nil))))), newerRefuses("not accepted since Go 1.21"))
}

func (m *maker) extensionParsing() {
	k1 := ecKey("root")
	root := rootCert("root", k1)
	raw := func(number uint64, value ...[]byte) []byte {
		var all []byte
		for _, v := range value {
			all = append(all, v...)
		}
		return extension(ce(number), false, all)
	}
	info := oid(1, 3, 6, 1, 5, 5, 7, 1, 1)
	ocsp := oid(1, 3, 6, 1, 5, 5, 7, 48, 1)
	for _, c := range []struct {
		name  string
		value []byte
	}{
		{"alternative names that are no sequence", raw(17, set())},
		{"alternative names without bytes", raw(17)},
		{"alternative names with data after them", raw(17, seq(dns("a")), null)},
		{"an alternative name that is cut", raw(17, der(0x30, []byte{0x82, 5, 'a'}))},
		{"an alternative name beyond ASCII", san(dns("\xe5"))},
		{"an e-mail address beyond ASCII", san(email("\xe5@a"))},
		{"an address of 5 bytes", san(ip(1, 2, 3, 4, 5))},
		{"an address of no bytes", san(ip())},
		{"an address of 16 bytes", san(ip(0x20, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1))},
		{"a URI", san(uri("spiffe://cluster.local/ns/a/sa/b"))},
		{"a URI with a control character", san(uri("http://a/\x01"))},
		{"a URI without a scheme", san(uri(":a"))},
		{"a URI with an invalid escape", san(uri("http://a/%zz"))},
		{"a URI with an invalid escape in the query", san(uri("http://a/?%zz"))},
		{"a URI with an invalid port", san(uri("http://a:b/"))},
		{"a URI with a blank in the host", san(uri("http://a b/"))},
		{"a URI with an invalid host", san(uri("http://a..b/"))},
		{"a URI with a trailing dot", san(uri("http://a.b./"))},
		{"a URI that is opaque", san(uri("urn:uuid:%zz"))},
		{"an empty URI", san(uri(""))},
		{"a URI with a user", san(uri("http://u@a/"))},
		{"a URI with an invalid user", san(uri("http://u u@a/"))},
		{"a URI with an unclosed bracket", san(uri("http://[::1/"))},
		{"a relative URI with a colon", san(uri("1a:b"))},
		{"other names", san(der(0xa0, oid(1, 2, 3), der(0xa0, der(12, []byte("x")))), directory(name("x")), der(0x88, []byte{1}))},
		{"names of a tag that is not known", raw(17, seq(der(0x0c, []byte("x"))))},
		{"basic constraints that are no sequence", raw(19, set())},
		{"basic constraints with a boolean of 1", raw(19, seq([]byte{1, 1, 1}))},
		{"basic constraints with a length that is not minimal", raw(19, seq(yes, der(2, []byte{0, 1})))},
		{"basic constraints with data in them", raw(19, seq(yes, integer(0), null))},
		{"basic constraints with data after them", raw(19, seq(yes), null)},
		{"basic constraints with a number of 9 bytes", raw(19, seq(yes, der(2, []byte{1, 0, 0, 0, 0, 0, 0, 0, 0})))},
		{"a subject key identifier that is no string", raw(14, integer(1))},
		{"an empty subject key identifier", raw(14, octets(nil))},
		{"an authority key identifier that is no sequence", raw(35, octets(nil))},
		{"an empty authority key identifier", raw(35, seq())},
		{"policies that are no sequence", raw(32, oid(1, 2, 3))},
		{"no policies", raw(32, seq())},
		{"an empty policy", raw(32, seq(seq()))},
		{"a policy with qualifiers", raw(32, seq(seq(oid(1, 2, 3), seq(seq(oid(1, 3, 6, 1, 5, 5, 7, 2, 1), der(22, []byte("http://a")))))))},
		{"distribution points", raw(31, seq(seq(der(0xa0, der(0xa0, uri("http://a/crl"))))))},
		{"distribution points that are no sequence", raw(31, octets(nil))},
		{"a distribution point without a name", raw(31, seq(seq(der(0x81, []byte{0, 1}))))},
		{"a distribution point of a relative name", raw(31, seq(seq(der(0xa0, der(0xa1, cnOid)))))},
		{"a distribution point of a directory name", raw(31, seq(seq(der(0xa0, der(0xa0, directory(name("x")))))))},
		{"information access", extension(info, false, seq(seq(ocsp, uri("http://a"))))},
		{"information access of another name", extension(info, false, seq(seq(ocsp, dns("a"))))},
		{"information access that is no sequence", extension(info, false, octets(nil))},
		{"information access without a method", extension(info, false, seq(seq()))},
		{"critical distribution points", extension(ce(31), true, seq())},
		{"issuer's alternative names", raw(18, seq(dns("a")))},
		{"critical issuer's alternative names", extension(ce(18), true, seq(dns("a")))},
		{"a policy mapping", raw(33, seq(seq(oid(1, 2, 3), oid(1, 2, 4))))},
		{"a certificate template of Microsoft", extension(oid(1, 3, 6, 1, 4, 1, 311, 21, 7), false, seq(oid(1, 2, 3), integer(1)))},
		{"a step provisioner", extension(oid(1, 3, 6, 1, 4, 1, 37476, 9000, 64, 1), false, seq(integer(1), octets([]byte("x")), octets([]byte("y"))))},
	} {
		m.add("extension: "+c.name, list(root), list(leaf("root", k1, plus(c.value))))
	}
	for _, c := range []struct {
		name  string
		value []byte
	}{
		{"purposes that are no sequence", raw(37, clientAuth)},
		{"purposes without bytes", raw(37)},
		{"a purpose that is no identifier", raw(37, seq(octets(nil)))},
		{"purposes with data after them", raw(37, seq(clientAuth), null)},
	} {
		m.add("extension: "+c.name, list(root), list(leaf("root", k1, with(c.value))))
	}
	for _, c := range []struct {
		name  string
		value []byte
	}{
		{"that is no bit string", raw(15, octets(nil))},
		{"without bytes", raw(15, der(3))},
		{"with bits in its padding", raw(15, bits(6, 0xa0))},
		{"with 8 bits of padding", raw(15, bits(8, 0))},
		{"with padding of nothing", raw(15, der(3, []byte{1}))},
		{"with data after it", raw(15, bits(7, 0x80), null)},
		{"that is not minimal", raw(15, bits(0, 0x80, 0))},
	} {
		m.add("extension: key usage "+c.name, list(root), list(leaf("root", k1, with(c.value))))
	}
	for _, c := range []struct {
		name, why string
		value     []byte
	}{
		{"a critical subject key identifier", "not accepted since Go 1.24", extension(ce(14), true, octets([]byte("x")))},
		{"a critical authority key identifier", "not accepted since Go 1.24", extension(ce(35), true, seq(der(0x80, []byte("x"))))},
		{"critical information access", "not accepted since Go 1.24", extension(info, true, seq(seq(ocsp, uri("http://a"))))},
		{"a policy twice", "not accepted since Go 1.24", raw(32, seq(seq(oid(1, 2, 3)), seq(oid(1, 2, 3))))},
		{"a negative path length", "not accepted since Go 1.25", raw(19, seq(yes, der(2, []byte{0xff})))},
		{"an IPv4 address in an IPv6 one", "not accepted by newer versions", san(ip(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1))},
		{"policy constraints that are no sequence", "parsed since Go 1.24", raw(36, octets(nil))},
		{"inhibit any policy that is no number", "parsed since Go 1.24", raw(54, octets(nil))},
		{"policy mappings that are no sequence", "parsed since Go 1.24", raw(33, octets(nil))},
		{"a URI with two colons in the host", "not accepted since Go 1.26", san(uri("http://a:1:2/"))},
		{"a URI with brackets in the host", "CVE-2026-25679, Go 1.26.1", san(uri("http://a[b]/"))},
		{"a URI with a name in brackets", "not accepted since Go 1.25", san(uri("http://[a]/"))},
	} {
		m.add("extension: "+c.name, list(root), list(leaf("root", k1, plus(c.value))), newerRefuses(c.why))
	}
}

func (m *maker) algorithms() {
	for _, c := range []struct {
		name string
		key  key
	}{
		{"P-256 and SHA-256", ecKey("root")},
		{"P-256 and SHA-384", ecKeyOn(elliptic.P256(), "root", "sha384")},
		{"P-256 and SHA-512", ecKeyOn(elliptic.P256(), "root", "sha512")},
		{"P-384 and SHA-256", ecKeyOn(elliptic.P384(), "root", "sha256")},
		{"P-384 and SHA-384", ecKeyOn(elliptic.P384(), "root", "sha384")},
		{"P-384 and SHA-512", ecKeyOn(elliptic.P384(), "root", "sha512")},
		{"P-521 and SHA-256", ecKeyOn(elliptic.P521(), "root", "sha256")},
		{"P-521 and SHA-512", ecKeyOn(elliptic.P521(), "root", "sha512")},
		{"P-256 and SHA-1", ecKeyOn(elliptic.P256(), "root", "sha1")},
		{"Ed25519", edKey("root")},
		{"RSA and SHA-1", rsaKey(2048, "sha1")},
		{"RSA and SHA-256", rsaKey(2048, "sha256")},
		{"RSA and SHA-384", rsaKey(2048, "sha384")},
		{"RSA and SHA-512", rsaKey(2048, "sha512")},
		{"PSS and SHA-256", pssKey("sha256", null, 32)},
		{"PSS and SHA-256 without parameters", pssKey("sha256", nil, 32)},
		{"PSS and SHA-384", pssKey("sha384", null, 48)},
		{"PSS and SHA-512", pssKey("sha512", nil, 64)},
		{"PSS with another salt", pssKey("sha256", null, 20)},
	} {
		m.add("algorithm: "+c.name, list(rootCert("root", c.key)), list(leaf("root", c.key)))
	}
	rsa := rsaKey(2048, "sha256")
	m.add("algorithm: RSA whose algorithm has no parameters", list(rootCert("root", rsa)), list(leaf("root", rsa,
		func(c *cert) { c.algorithm = seq(oid(1, 2, 840, 113549, 1, 1, 11)) })))
	m.add("algorithm: RSA named by an ECDSA key", list(rootCert("root", ecKey("root"))), list(leaf("root", ecKey("root"),
		func(c *cert) { c.algorithm = rsa.algorithm })))
	m.add("algorithm: Ed25519 with parameters", list(rootCert("root", edKey("root"))), list(leaf("root", edKey("root"),
		func(c *cert) { c.algorithm = seq(oid(1, 3, 101, 112), null) })))
	for _, k := range []struct {
		name string
		key  key
	}{{"RSA", rsa}, {"Ed25519", edKey("alice")}, {"P-384", ecKeyOn(elliptic.P384(), "alice", "sha384")}} {
		m.add("algorithm: a leaf's key of "+k.name, list(rootCert("root", ecKey("root"))),
			list(leaf("root", ecKey("root"), func(c *cert) { c.key = k.key })))
	}
	large := rsaKeyOf(rsaPrivateWith(2048, 1<<32+1), "sha256")
	m.add("algorithm: RSA with an exponent of 33 bits", list(rootCert("root", large)), list(leaf("root", large)),
		newerRefuses("not accepted since Go 1.24"))
	m.add("algorithm: a leaf's key of RSA with an exponent of 33 bits", list(rootCert("root", ecKey("root"))),
		list(leaf("root", ecKey("root"), func(c *cert) { c.key = large })), newerRefuses("TLS fails since Go 1.24"))
	hash := seq(oid(2, 16, 840, 1, 101, 3, 4, 2, 1))
	mask := seq(oid(1, 2, 840, 113549, 1, 1, 8), hash)
	pss := pssKey("sha256", nil, 32)
	for _, c := range []struct {
		name       string
		parameters []byte
	}{
		{"after the hash", seq(der(0xa0, hash, null), der(0xa1, mask), der(0xa2, integer(32)))},
		{"after the mask", seq(der(0xa0, hash), der(0xa1, mask, null), der(0xa2, integer(32)))},
		{"after the salt", seq(der(0xa0, hash), der(0xa1, mask), der(0xa2, integer(32), null))},
		{"after the trailer", seq(der(0xa0, hash), der(0xa1, mask), der(0xa2, integer(32)), der(0xa3, integer(1), null))},
	} {
		m.add("algorithm: PSS with data "+c.name, list(rootCert("root", pss)), list(leaf("root", pss,
			func(cert *cert) { cert.algorithm = seq(oid(1, 2, 840, 113549, 1, 1, 10), c.parameters) })))
	}
	root, sub := rsaKey(2048, "sha256"), ecKey("sub")
	m.add("algorithm: a path of several", list(rootCert("root", root)), list(leaf("sub", sub),
		intermediate("sub", sub, "root", root)))
}

// Chains as tools make them.
func (m *maker) tools() {
	id := func(k string) []byte { return extension(ce(14), false, octets(seeded(k, 20))) }
	by := func(k string) []byte { return extension(ce(35), false, seq(der(0x80, seeded(k, 20)))) }
	rsa := rsaKey(2048, "sha256")
	kubeadm := rootCert("kubernetes", rsa, with(keyUsage(digitalSignature|keyEncipherment|certSign), isCa(-1), id("k"), san(dns("kubernetes"))))
	m.add("kubeadm: the administrator", list(kubeadm), list(leaf("kubernetes", rsa, subject(name("kubernetes-admin", "kubeadm:cluster-admins")),
		with(keyUsage(digitalSignature|keyEncipherment), purposes(clientAuth), extension(ce(19), true, seq()), by("k")))))
	m.add("kubeadm: a kubelet", list(kubeadm), list(leaf("kubernetes", rsa, subject(name("system:node:a", "system:nodes")),
		with(keyUsage(digitalSignature), purposes(clientAuth), extension(ce(19), true, seq()), by("k")))))
	front := rootCert("front-proxy-ca", ecKey("front"), with(keyUsage(digitalSignature|keyEncipherment|certSign), isCa(-1), id("f"), san(dns("front-proxy-ca"))))
	m.add("kubeadm: the front proxy", list(front), list(leaf("front-proxy-ca", ecKey("front"), subject(name("front-proxy-client")),
		with(keyUsage(digitalSignature|keyEncipherment), purposes(clientAuth), extension(ce(19), true, seq()), by("f")))))
	m.add("kubeadm: a client of the other CA", list(kubeadm), list(leaf("front-proxy-ca", ecKey("front"), subject(name("front-proxy-client")),
		with(keyUsage(digitalSignature), purposes(clientAuth), by("f")))))

	manager := rootCert("cert-manager-ca", ecKey("cm"), with(keyUsage(digitalSignature|keyEncipherment|certSign), isCa(-1), id("cm")))
	m.add("cert-manager: from a CA issuer", list(manager), list(leaf("cert-manager-ca", ecKey("cm"), subject(name("app", "team")),
		with(keyUsage(digitalSignature|keyEncipherment), purposes(clientAuth), extension(ce(19), true, seq()), by("cm"), san(dns("app.default.svc"))))))
	m.add("cert-manager: with an intermediate", list(manager), list(
		leaf("cm-sub", ecKey("cms"), subject(name("app")), with(keyUsage(digitalSignature|keyEncipherment), purposes(serverAuth, clientAuth), by("cms"), san(uri("spiffe://cluster.local/ns/default/sa/app")))),
		intermediate("cm-sub", ecKey("cms"), "cert-manager-ca", ecKey("cm"), with(keyUsage(certSign|crlSign), isCa(0), id("cms"), by("cm")))))
	m.add("cert-manager: a CSI driver's without a subject", list(manager), list(leaf("cert-manager-ca", ecKey("cm"), subject(seq()),
		with(keyUsage(digitalSignature), purposes(clientAuth), extension(ce(17), true, seq(uri("spiffe://cluster.local/ns/default/sa/app")))))))

	vault := rootCert("vault root", rsa, with(keyUsage(certSign|crlSign), isCa(-1), id("v"), by("v"), san(dns("vault root"))))
	m.add("Vault: with an intermediate", list(vault), list(
		leaf("vault intermediate", ecKey("vi"), subject(name("bob", "dev")), with(keyUsage(digitalSignature|keyEncipherment), purposes(serverAuth, clientAuth), id("b"), by("vi"),
			extension(oid(1, 3, 6, 1, 5, 5, 7, 1, 1), false, seq(seq(oid(1, 3, 6, 1, 5, 5, 7, 48, 2), uri("https://vault:8200/v1/pki/ca")))),
			san(dns("bob.example.com")), extension(ce(31), false, seq(seq(der(0xa0, der(0xa0, uri("https://vault:8200/v1/pki/crl")))))))),
		intermediate("vault intermediate", ecKey("vi"), "vault root", rsa, with(keyUsage(certSign|crlSign), isCa(-1), id("vi"), by("v")))))

	step := rootCert("Smallstep Root CA", ecKey("step"), subject(seq(attribute(oOid, 12, "Smallstep"), attribute(cnOid, 12, "Smallstep Root CA"))),
		func(c *cert) { c.issuer = c.subject }, with(keyUsage(certSign|crlSign), isCa(1), id("s")))
	stepName := seq(attribute(oOid, 12, "Smallstep"), attribute(cnOid, 12, "Smallstep Root CA"))
	m.add("step: with an intermediate", list(step), list(
		leaf("Smallstep Intermediate CA", ecKey("si"), subject(name("carol", "dev")), with(keyUsage(digitalSignature), purposes(serverAuth, clientAuth), id("c"), by("si"),
			san(dns("carol")), extension(oid(1, 3, 6, 1, 4, 1, 37476, 9000, 64, 1), false, seq(integer(1), octets([]byte("admin")), octets([]byte("x")))))),
		intermediate("Smallstep Intermediate CA", ecKey("si"), "", ecKey("step"), func(c *cert) { c.issuer = stepName },
			with(keyUsage(certSign|crlSign), isCa(0), id("si"), by("s")))))

	openssl := func(c *cert) {
		c.extensions = [][]byte{extension(ce(19), false, seq(yes)), id("o"), by("o")}
	}
	m.add("openssl: req -x509 and x509 -req without extensions", list(rootCert("openssl", rsa, openssl)),
		list(leaf("openssl", rsa, func(c *cert) { c.version, c.extensions = nil, nil; c.subject = name("dave", "ops") })))
	m.add("openssl: a critical authority with all usages", list(rootCert("openssl", rsa, with(isCa(-1), id("o"), by("o")))),
		list(leaf("openssl", rsa, subject(name("dave", "ops")), with(extension(ce(19), false, seq()), id("d"), by("o")))))
	cfssl := rootCert("cfssl", ecKey("cfssl"), subject(seq(attribute(oid(2, 5, 4, 6), 19, "US"), attribute(oOid, 19, "Kubernetes"), attribute(ouOid, 19, "CA"), attribute(cnOid, 19, "Kubernetes"))),
		func(c *cert) { c.issuer = c.subject })
	m.add("cfssl: printable strings", list(cfssl), list(leaf("", ecKey("cfssl"),
		func(c *cert) {
			c.issuer = seq(attribute(oid(2, 5, 4, 6), 19, "US"), attribute(oOid, 19, "Kubernetes"), attribute(ouOid, 19, "CA"), attribute(cnOid, 19, "Kubernetes"))
			c.subject = seq(attribute(oid(2, 5, 4, 6), 19, "US"), attribute(oOid, 19, "system:masters"), attribute(ouOid, 19, "x"), attribute(cnOid, 19, "admin"))
		})))
}

// A usual chain in which one byte is another one.
func (m *maker) mutations() {
	k1 := ecKey("root")
	root := rootCert("root", k1)
	for i := 0; i < 60; i++ {
		certificate := leaf("root", k1, plus(san(dns("a"), uri("http://a:1/%41"), ip(10, 0, 0, 1)), extension(ce(19), true, seq(yes, integer(1))),
			constraints(false, permitted(dns("a"), ip(10, 0, 0, 0, 255, 0, 0, 0), email("a@b"))), extension(ce(32), false, seq(seq(oid(1, 2, 3))))))
		random := seeded("mutation"+string(rune(i)), 3)
		signed := int(certificate[6])<<8 | int(certificate[7])
		// The tbs is changed and signed again, so that parsing decides.
		tbs := append([]byte{}, certificate[4:8+signed]...)
		tbs[4+(int(random[0])<<8|int(random[1]))%signed] = random[2]
		mutated := seq(tbs, k1.algorithm, bits(0, k1.sign(tbs)...))
		in := input{Roots: list(root), Chain: list(mutated), At: at.Unix()}
		m.cases = append(m.cases, golden{Name: "mutation " + string(rune('0'+i/10)) + string(rune('0'+i%10)), Input: in, Expected: m.verdict(in)})
	}
}
