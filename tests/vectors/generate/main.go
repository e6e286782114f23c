// Writes the golden cases of certificates: `go run . ..` in this folder. Standard library only.
//
// A case says whether Go accepts a chain of certificates, at the time of the case, as
// kube-apiserver (client_certificates) or kubectl (server_certificates) asks it to. Where newer
// versions of Go decide differently than the one that runs this program, the verdict that counts is
// by `hand`, with the reason.
package main

import (
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

type input struct {
	Roots [][]byte `json:"roots"`
	Chain [][]byte `json:"chain"`
	Host  string   `json:"host,omitempty"`
	// Seconds since 1970.
	At int64 `json:"at"`
}

type expected struct {
	Accepted bool     `json:"accepted"`
	Name     string   `json:"name,omitempty"`
	Groups   []string `json:"groups,omitempty"`
	UID      string   `json:"uid,omitempty"`
	Why      string   `json:"why,omitempty"`
	By       string   `json:"by"`
}

type golden struct {
	Name     string   `json:"name"`
	Input    input    `json:"input"`
	Expected expected `json:"expected"`
}

var byGo = runtime.Version()

// Newer versions do not parse it (since 1.23).
var errNegativeSerial = errors.New("x509: negative serial number")

func verify(in input, purpose x509.ExtKeyUsage) (*x509.Certificate, error) {
	roots, intermediates := x509.NewCertPool(), x509.NewCertPool()
	for _, raw := range in.Roots {
		root, err := x509.ParseCertificate(raw)
		if err != nil {
			// kube-apiserver does not start with it; AppendCertsFromPEM skips it.
			continue
		}
		roots.AddCert(root)
	}
	var leaf *x509.Certificate
	for n, raw := range in.Chain {
		parsed, err := x509.ParseCertificate(raw)
		if err != nil {
			return nil, err
		}
		if parsed.SerialNumber.Sign() < 0 {
			return nil, errNegativeSerial
		}
		if n == 0 {
			leaf = parsed
		} else {
			intermediates.AddCert(parsed)
		}
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: intermediates, CurrentTime: at,
		KeyUsages: []x509.ExtKeyUsage{purpose}, DNSName: in.Host,
	})
	return leaf, err
}

// client is CommonNameUserConversion of Kubernetes 1.36 after a verification.
func client(in input) expected {
	leaf, err := verify(in, x509.ExtKeyUsageClientAuth)
	if err == nil && leaf.Subject.CommonName == "" {
		err = errors.New("the subject has no common name")
	}
	if err == nil {
		// As Go's TLS decides in the handshake.
		switch leaf.PublicKey.(type) {
		case *rsa.PublicKey, *ecdsa.PublicKey, ed25519.PublicKey:
		default:
			err = errors.New("tls: client certificate contains an unsupported public key")
		}
	}
	uid := ""
	if err == nil {
		uid, err = uidOf(leaf)
	}
	if err != nil {
		return expected{Why: err.Error(), By: byGo}
	}
	return expected{
		Accepted: true, Name: leaf.Subject.CommonName, Groups: leaf.Subject.Organization,
		UID: uid, By: byGo,
	}
}

func uidOf(leaf *x509.Certificate) (string, error) {
	kind := asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}
	var found []string
	for _, attribute := range leaf.Subject.Names {
		if attribute.Type.Equal(kind) {
			text, _ := attribute.Value.(string)
			found = append(found, text)
		}
	}
	switch {
	case len(found) == 0:
		return "", nil
	case len(found) > 1 || found[0] == "":
		return "", fmt.Errorf("uid: %q", found)
	default:
		return found[0], nil
	}
}

func main() {
	for file, cases := range map[string][]golden{
		"client_certificates": clientCases(),
		"server_certificates": serverCases(),
	} {
		names := map[string]bool{}
		for _, c := range cases {
			if names[c.Name] {
				panic("twice: " + c.Name)
			}
			names[c.Name] = true
		}
		out, err := os.Create(filepath.Join(os.Args[1], file+".json.gz"))
		check(err)
		packed, err := gzip.NewWriterLevel(out, gzip.BestCompression)
		check(err)
		encoder := json.NewEncoder(packed)
		encoder.SetEscapeHTML(false)
		check(encoder.Encode(cases))
		check(packed.Close())
		check(out.Close())
		accepted := 0
		for _, c := range cases {
			if c.Expected.Accepted {
				accepted++
			}
		}
		fmt.Println(file, len(cases), "cases,", accepted, "accepted")
	}
}
