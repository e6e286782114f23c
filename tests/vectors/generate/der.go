package main

import (
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/binary"
	"math/big"
	"time"

	"crypto"
)

// Certificates are written by hand here, so that they can be wrong in every way, and without
// randomness, so that the same program writes the same files.

func der(tag byte, parts ...[]byte) []byte {
	var contents []byte
	for _, part := range parts {
		contents = append(contents, part...)
	}
	n := len(contents)
	switch {
	case n < 0x80:
		return append([]byte{tag, byte(n)}, contents...)
	case n < 0x100:
		return append([]byte{tag, 0x81, byte(n)}, contents...)
	default:
		return append([]byte{tag, 0x82, byte(n >> 8), byte(n)}, contents...)
	}
}

func seq(parts ...[]byte) []byte { return der(0x30, parts...) }
func set(parts ...[]byte) []byte { return der(0x31, parts...) }
func octets(b []byte) []byte     { return der(4, b) }
func bits(unused byte, b ...byte) []byte {
	return der(3, []byte{unused}, b)
}
func integer(n int64) []byte {
	b := big.NewInt(n).Bytes()
	if len(b) == 0 || b[0] >= 0x80 {
		b = append([]byte{0}, b...)
	}
	return der(2, b)
}

var (
	yes  = []byte{1, 1, 0xff}
	no   = []byte{1, 1, 0}
	null = []byte{5, 0}
)

func oid(numbers ...uint64) []byte {
	contents := []byte{byte(numbers[0]*40 + numbers[1])}
	for _, n := range numbers[2:] {
		part := []byte{byte(n & 0x7f)}
		for n >>= 7; n > 0; n >>= 7 {
			part = append([]byte{byte(n&0x7f) | 0x80}, part...)
		}
		contents = append(contents, part...)
	}
	return der(6, contents)
}

// A key, which signs.
type key struct {
	spki []byte
	sign func(tbs []byte) []byte
	// The algorithm of its signatures.
	algorithm []byte
}

func seeded(name string, n int) []byte {
	var out []byte
	for i := uint32(0); len(out) < n; i++ {
		counter := binary.BigEndian.AppendUint32(nil, i)
		sum := sha256.Sum256(append([]byte(name), counter...))
		out = append(out, sum[:]...)
	}
	return out[:n]
}

var curveOids = map[elliptic.Curve][]byte{
	elliptic.P224(): oid(1, 3, 132, 0, 33),
	elliptic.P256(): oid(1, 2, 840, 10045, 3, 1, 7),
	elliptic.P384(): oid(1, 3, 132, 0, 34),
	elliptic.P521(): oid(1, 3, 132, 0, 35),
}

func digest(hash string, message []byte) []byte {
	switch hash {
	case "sha1":
		sum := sha1.Sum(message)
		return sum[:]
	case "sha384":
		sum := sha512.Sum384(message)
		return sum[:]
	case "sha512":
		sum := sha512.Sum512(message)
		return sum[:]
	default:
		sum := sha256.Sum256(message)
		return sum[:]
	}
}

var ecdsaNumbers = map[string]uint64{"sha256": 2, "sha384": 3, "sha512": 4}

func ecKeyOn(curve elliptic.Curve, name, hash string) key {
	order := curve.Params().N
	d := new(big.Int).Mod(new(big.Int).SetBytes(seeded(name, 80)), order)
	x, y := curve.ScalarBaseMult(d.Bytes())
	algorithm := seq(oid(1, 2, 840, 10045, 4, 3, ecdsaNumbers[hash]))
	if hash == "sha1" {
		algorithm = seq(oid(1, 2, 840, 10045, 4, 1))
	}
	return key{
		spki: seq(seq(oid(1, 2, 840, 10045, 2, 1), curveOids[curve]),
			bits(0, elliptic.Marshal(curve, x, y)...)),
		algorithm: algorithm,
		sign: func(tbs []byte) []byte {
			sum := digest(hash, tbs)
			z := new(big.Int).SetBytes(sum)
			if excess := len(sum)*8 - order.BitLen(); excess > 0 {
				z.Rsh(z, uint(excess))
			}
			k := new(big.Int).Mod(new(big.Int).SetBytes(seeded(name+string(sum), 80)), order)
			r, _ := curve.ScalarBaseMult(k.Bytes())
			r.Mod(r, order)
			s := new(big.Int).Mul(r, d)
			s.Add(s, z).Mul(s, new(big.Int).ModInverse(k, order)).Mod(s, order)
			return seq(bigInteger(r), bigInteger(s))
		},
	}
}

func bigInteger(n *big.Int) []byte {
	b := n.Bytes()
	if len(b) == 0 || b[0] >= 0x80 {
		b = append([]byte{0}, b...)
	}
	return der(2, b)
}

func ecKey(name string) key { return ecKeyOn(elliptic.P256(), name, "sha256") }

func edKey(name string) key {
	private := ed25519.NewKeyFromSeed(seeded(name, 32))
	algorithm := seq(oid(1, 3, 101, 112))
	return key{
		spki:      seq(algorithm, bits(0, private.Public().(ed25519.PublicKey)...)),
		algorithm: algorithm,
		sign:      func(tbs []byte) []byte { return ed25519.Sign(private, tbs) },
	}
}

func prime(name string, size int) *big.Int {
	n := new(big.Int).SetBytes(seeded(name, size/8))
	n.SetBit(n, size-1, 1).SetBit(n, size-2, 1).SetBit(n, 0, 1)
	e, one := big.NewInt(65537), big.NewInt(1)
	for {
		less := new(big.Int).Sub(n, one)
		if n.ProbablyPrime(20) && new(big.Int).GCD(nil, nil, less, e).Cmp(one) == 0 {
			return n
		}
		n.Add(n, big.NewInt(2))
	}
}

var rsaKeys = map[[2]int]*rsa.PrivateKey{}

func rsaPrivate(size int) *rsa.PrivateKey { return rsaPrivateWith(size, 65537) }

func rsaPrivateWith(size, exponent int) *rsa.PrivateKey {
	if found := rsaKeys[[2]int{size, exponent}]; found != nil {
		return found
	}
	p, q := prime("p", size/2), prime("q", size/2)
	one := big.NewInt(1)
	phi := new(big.Int).Mul(new(big.Int).Sub(p, one), new(big.Int).Sub(q, one))
	private := &rsa.PrivateKey{
		PublicKey: rsa.PublicKey{N: new(big.Int).Mul(p, q), E: exponent},
		D:         new(big.Int).ModInverse(big.NewInt(int64(exponent)), phi),
		Primes:    []*big.Int{p, q},
	}
	private.Precompute()
	rsaKeys[[2]int{size, exponent}] = private
	return private
}

// zeros is the salt of PSS.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 0
	}
	return len(b), nil
}

var hashes = map[string]struct {
	hash   crypto.Hash
	pkcs1  uint64
	number uint64
}{
	"sha1":   {crypto.SHA1, 5, 0},
	"sha256": {crypto.SHA256, 11, 1},
	"sha384": {crypto.SHA384, 12, 2},
	"sha512": {crypto.SHA512, 13, 3},
}

func rsaSpki(private *rsa.PrivateKey, parameters []byte) []byte {
	public := seq(bigInteger(private.N), integer(int64(private.E)))
	return seq(seq(oid(1, 2, 840, 113549, 1, 1, 1), parameters), bits(0, public...))
}

func rsaKey(size int, hash string) key { return rsaKeyOf(rsaPrivate(size), hash) }

func rsaKeyOf(private *rsa.PrivateKey, hash string) key {
	kind := hashes[hash]
	return key{
		spki:      rsaSpki(private, null),
		algorithm: seq(oid(1, 2, 840, 113549, 1, 1, kind.pkcs1), null),
		sign: func(tbs []byte) []byte {
			signature, err := rsa.SignPKCS1v15(nil, private, kind.hash, digest(hash, tbs))
			check(err)
			return signature
		},
	}
}

func pssKey(hash string, parameters []byte, salt int) key {
	private := rsaPrivate(2048)
	kind := hashes[hash]
	hashAlgorithm := seq(oid(2, 16, 840, 1, 101, 3, 4, 2, kind.number), parameters)
	return key{
		spki: rsaSpki(private, null),
		algorithm: seq(oid(1, 2, 840, 113549, 1, 1, 10), seq(
			der(0xa0, hashAlgorithm),
			der(0xa1, seq(oid(1, 2, 840, 113549, 1, 1, 8), hashAlgorithm)),
			der(0xa2, integer(int64(salt))))),
		sign: func(tbs []byte) []byte {
			options := &rsa.PSSOptions{SaltLength: salt, Hash: kind.hash}
			signature, err := rsa.SignPSS(zeros{}, private, kind.hash, digest(hash, tbs), options)
			check(err)
			return signature
		},
	}
}

// A certificate before it is signed.
type cert struct {
	// The DER of the version's element. Empty for version 1.
	version          []byte
	serial           []byte
	subject, issuer  []byte
	from, to         []byte
	key              key
	spki             []byte
	beforeExtensions []byte
	extensions       [][]byte
	// The DER of all extensions, in place of those.
	rawExtensions []byte
	afterTbs      []byte
	afterAll      []byte
	outer         []byte
	algorithm     []byte
	signature     func(signed []byte) []byte
}

// at is when the certificates are verified.
var at = time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)

func utc(text string) []byte { return der(0x17, []byte(text)) }

func (c cert) signedBy(parent key) []byte {
	algorithm := parent.algorithm
	if c.algorithm != nil {
		algorithm = c.algorithm
	}
	spki := c.key.spki
	if c.spki != nil {
		spki = c.spki
	}
	extensions := c.rawExtensions
	if extensions == nil && len(c.extensions) > 0 {
		extensions = der(0xa3, seq(c.extensions...))
	}
	tbs := seq(c.version, c.serial, algorithm, c.issuer, seq(c.from, c.to), c.subject, spki,
		c.beforeExtensions, extensions, c.afterTbs)
	outer := algorithm
	if c.outer != nil {
		outer = c.outer
	}
	signature := bits(0, parent.sign(tbs)...)
	if c.signature != nil {
		signature = c.signature(signature)
	}
	return seq(tbs, outer, signature, c.afterAll)
}

// Names.

func attribute(kind []byte, tag byte, value string) []byte {
	return set(seq(kind, der(tag, []byte(value))))
}

var (
	cnOid  = oid(2, 5, 4, 3)
	oOid   = oid(2, 5, 4, 10)
	ouOid  = oid(2, 5, 4, 11)
	uidOid = oid(1, 3, 6, 1, 4, 1, 57683, 2)
)

func name(cn string, organizations ...string) []byte {
	var parts [][]byte
	for _, o := range organizations {
		parts = append(parts, attribute(oOid, 12, o))
	}
	if cn != "" {
		parts = append(parts, attribute(cnOid, 12, cn))
	}
	return seq(parts...)
}

// Extensions.

func extension(kind []byte, critical bool, value []byte) []byte {
	if critical {
		return seq(kind, yes, octets(value))
	}
	return seq(kind, octets(value))
}

func ce(number uint64) []byte { return oid(2, 5, 29, number) }

func isCa(pathLen int) []byte {
	if pathLen < 0 {
		return extension(ce(19), true, seq(yes))
	}
	return extension(ce(19), true, seq(yes, integer(int64(pathLen))))
}

// The bits of the key usage.
const (
	digitalSignature = 0x80
	keyEncipherment  = 0x20
	certSign         = 0x04
	crlSign          = 0x02
)

func keyUsage(usage byte) []byte {
	unused := byte(0)
	for usage != 0 && usage&(1<<unused) == 0 {
		unused++
	}
	if usage == 0 {
		return extension(ce(15), true, bits(0))
	}
	return extension(ce(15), true, bits(unused, usage))
}

var (
	clientAuth  = oid(1, 3, 6, 1, 5, 5, 7, 3, 2)
	serverAuth  = oid(1, 3, 6, 1, 5, 5, 7, 3, 1)
	anyPurpose  = oid(2, 5, 29, 37, 0)
	codeSigning = oid(1, 3, 6, 1, 5, 5, 7, 3, 3)
	unknownUse  = oid(1, 2, 3, 4)
)

func purposes(oids ...[]byte) []byte { return extension(ce(37), false, seq(oids...)) }

func email(s string) []byte        { return der(0x81, []byte(s)) }
func dns(s string) []byte          { return der(0x82, []byte(s)) }
func uri(s string) []byte          { return der(0x86, []byte(s)) }
func ip(b ...byte) []byte          { return der(0x87, b) }
func directory(name []byte) []byte { return der(0xa4, name) }
func san(names ...[]byte) []byte   { return extension(ce(17), false, seq(names...)) }

func subtrees(tag byte, names ...[]byte) []byte {
	var parts [][]byte
	for _, n := range names {
		parts = append(parts, seq(n))
	}
	return der(tag, parts...)
}
func permitted(names ...[]byte) []byte { return subtrees(0xa0, names...) }
func excluded(names ...[]byte) []byte  { return subtrees(0xa1, names...) }
func constraints(critical bool, parts ...[]byte) []byte {
	return extension(ce(30), critical, seq(parts...))
}

var v3 = der(0xa0, integer(2))
