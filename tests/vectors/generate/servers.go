package main

import "crypto/x509"

// server is what kubectl decides.
func server(in input) expected {
	_, err := verify(in, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return expected{Why: err.Error(), By: byGo}
	}
	return expected{Accepted: true, By: byGo}
}

func serverCases() []golden {
	m := &maker{verdict: server, host: "kube.example.com"}
	k1, k2 := ecKey("root"), ecKey("sub")
	root := rootCert("root", k1)
	serving := func(change ...func(*cert)) []byte {
		all := append([]func(*cert){subject(name("kube-apiserver")), with(keyUsage(digitalSignature), purposes(serverAuth),
			san(dns("kube.example.com"), ip(10, 0, 0, 1)))}, change...)
		return leaf("root", k1, all...)
	}
	m.add("issued by the root", list(root), list(serving()))
	m.add("its own certificate is in the file", list(serving()), list(serving()))
	m.add("its own certificate is in the file and has expired",
		list(serving(valid("200101000000Z", "210101000000Z"))), list(serving(valid("200101000000Z", "210101000000Z"))))
	m.add("its own certificate is in the file, for clients",
		list(serving(with(purposes(clientAuth), san(dns("kube.example.com"))))), list(serving(with(purposes(clientAuth), san(dns("kube.example.com"))))))
	m.add("its own certificate is in the file, for another host",
		list(serving(with(san(dns("other.example.com"))))), list(serving(with(san(dns("other.example.com"))))))
	m.add("another certificate of the issuer is in the file", list(serving(subject(name("other")))), list(serving()))
	selfSigned := func(change ...func(*cert)) []byte {
		all := append([]func(*cert){subject(name("self")), with(keyUsage(digitalSignature|certSign), isCa(-1), purposes(serverAuth), san(dns("kube.example.com")))}, change...)
		return leaf("self", ecKey("alice"), all...)
	}
	m.add("self-signed with CA:TRUE", list(selfSigned()), list(selfSigned()))
	m.add("self-signed with CA:TRUE and not in the file", list(root), list(selfSigned()))
	m.add("self-signed without CA:TRUE", list(selfSigned(with(san(dns("kube.example.com"))))), list(selfSigned(with(san(dns("kube.example.com"))))))
	m.add("self-signed, only a renewed one of the same key is in the file", list(selfSigned(func(c *cert) { c.serial = integer(9) })), list(selfSigned()))
	m.add("self-signed with CA:FALSE, only a renewed one is in the file",
		list(selfSigned(with(san(dns("kube.example.com"))), func(c *cert) { c.serial = integer(9) })), list(selfSigned(with(san(dns("kube.example.com"))))))
	m.add("a CA issued by the root", list(root), list(serving(plus(isCa(-1)))))
	m.add("no name", list(root), list(serving(with(purposes(serverAuth)))))
	m.add("only a common name", list(root), list(serving(subject(name("kube.example.com")), with(purposes(serverAuth)))))
	m.add("has expired", list(root), list(serving(valid("200101000000Z", "210101000000Z"))))
	m.add("the root has expired", list(rootCert("root", k1, valid("200101000000Z", "210101000000Z"))), list(serving()))
	m.add("the root may not sign", list(rootCert("root", k1, with(isCa(-1), keyUsage(digitalSignature)))), list(serving()))
	m.add("the root is of version 1", list(rootCert("root", k1, func(c *cert) { c.version, c.extensions = nil, nil })), list(serving()))
	m.add("the certificate is of version 1", list(root), list(serving(func(c *cert) { c.version, c.extensions = nil, nil })))
	m.add("an intermediate", list(root), list(leaf("sub", k2, subject(name("s")), with(san(dns("kube.example.com")))), intermediate("sub", k2, "root", k1)))
	m.add("an intermediate for clients", list(root), list(leaf("sub", k2, subject(name("s")), with(san(dns("kube.example.com")))),
		intermediate("sub", k2, "root", k1, plus(purposes(clientAuth)))))
	m.add("no purpose", list(root), list(serving(with(san(dns("kube.example.com"))))))
	m.add("for clients", list(root), list(serving(with(purposes(clientAuth), san(dns("kube.example.com"))))))
	for _, host := range []string{"kube.example.com", "KUBE.example.com", "kube.example.com.", "a.kube.example.com", "example.com", "kubernetes", "kube_a.example.com", "10.0.0.1", "10.0.0.2", "2001:db8::1", "::ffff:10.0.0.1"} {
		for _, c := range []struct {
			name  string
			names [][]byte
		}{
			{"itself", list(dns("kube.example.com"))},
			{"in capitals", list(dns("Kube.Example.COM"))},
			{"a wildcard", list(dns("*.example.com"))},
			{"a wildcard of the wrong level", list(dns("*.com"))},
			{"a wildcard in a label", list(dns("k*.example.com"))},
			{"a wildcard alone", list(dns("*"))},
			{"a name with a trailing dot", list(dns("kube.example.com."))},
			{"an address", list(ip(10, 0, 0, 1))},
			{"an address as a name", list(dns("10.0.0.1"))},
			{"an IPv6 address", list(ip(0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1))},
			{"a short name", list(dns("other"), dns("kubernetes"))},
		} {
			m.host = host
			var newer []hand
			if host == "kubernetes" && c.name == "a wildcard alone" {
				newer = append(newer, newerRefuses("not accepted since Go 1.25"))
			}
			m.add("host "+host+": "+c.name, list(root), list(serving(with(purposes(serverAuth), san(c.names...)))), newer...)
		}
	}
	return m.cases
}
