package console

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"mime"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/posthaste-dev/posthaste/protect"
)

const (
	shownBytes  = 64 << 10 // of a content that a page shows, unless all of it was requested
	indentBytes = 1 << 20  // largest JSON text that is indented
	laidBytes   = 8 << 20  // largest result of indenting
	dumpedBytes = 4 << 10  // shown of a content that is not text
	deepest     = 64       // names that lead to a value: a deeper one is masked
	mostTokens  = 20_000   // of a content that a page distinguishes: each takes some 60 bytes
)

// content is a payload, or a result, in the form in which a page shows it.
type content struct {
	contentType string
	size        int
	tokens      []token
	masked      int  // values that are masked
	cut         bool // there is more
	sealed      string
	binary      bool
	missing     bool // there is none
}

// token is a piece of a text, with its class.
type token struct{ class, text string }

// contentOf prepares a content. It masks values in JSON whatever its type is called, in lines that are JSON, and in a
// form. It indents JSON by changing only the space between tokens: it parses no number, moves no name and re-encodes no
// string.
func (s *site) contentOf(stored []byte, contentType string, reveal, whole bool) content {
	c := content{contentType: contentType, size: len(stored), missing: stored == nil}
	if kind, _, _ := mime.ParseMediaType(contentType); strings.HasPrefix(kind, protect.SealedPrefix) {
		c.sealed = kind
		return c
	} else if sealed := protect.SealedResult(stored); sealed != "" {
		c.sealed = sealed
		return c
	} else if json.Valid(stored) { // also as a form: some clients call every body one
		if text, ok := laidOut(string(stored), laidBytes); ok && len(stored) <= indentBytes {
			return c.json(text, s.mask(reveal), whole)
		}
		if !reveal {
			stored = []byte(c.maskIn(string(stored), s.mask(false)))
		}
	} else if !reveal && kind == "application/x-www-form-urlencoded" {
		stored = []byte(c.maskForm(string(stored), s.mask(false)))
	} else if !reveal {
		stored = []byte(c.maskLines(string(stored), s.mask(false)))
	}
	text := stored
	if !utf8.Valid(text) || bytes.IndexByte(text, 0) >= 0 {
		c.binary, c.cut = true, len(text) > dumpedBytes
		c.tokens = []token{{"", hex.Dump(text[:min(len(text), dumpedBytes)])}}
		return c
	}
	if !whole && len(text) > shownBytes {
		text, c.cut = []byte(strings.ToValidUTF8(string(text[:shownBytes]), "")), true
	}
	c.tokens = []token{{"", string(text)}}
	return c
}

// laidOut returns a valid JSON text with each value on its own line, and false if that would exceed most bytes. Deeply
// nested text grows with the square of its length.
func laidOut(text string, most int) (string, bool) {
	size, depth := 0, 0
	for i, n := 0, 0; i < len(text) && size <= most; i += n {
		n = 1
		switch text[i] {
		case '"':
			n = stringLength(text[i:])
			size += n
		case '{', '[':
			depth++
			size += 2 + 2*depth
		case '}', ']':
			depth--
			size += 2 + 2*depth
		case ',':
			size += 2 + 2*depth
		case ':':
			size += 2
		case ' ', '\t', '\r', '\n':
		default:
			size++
		}
	}
	if size > most {
		return text, false
	}
	var b bytes.Buffer
	_ = json.Indent(&b, []byte(text), "", "  ") // it is valid
	return b.String(), true
}

// maskIn masks values of a JSON text that is not indented.
func (c *content) maskIn(text string, hidden func([]string) bool) string {
	return replaceValues(text, func(path []string, value string) string {
		if !hidden(path) {
			return value
		}
		c.masked++
		return masked
	})
}

// maskForm masks values of a form as a browser sends it. The name user[password] leads to a value as in JSON. A name
// that cannot be decoded counts as it is written.
func (c *content) maskForm(text string, hidden func([]string) bool) string {
	inBrackets := func(r rune) bool { return r == '[' || r == ']' }
	pairs := strings.Split(text, "&")
	for i, pair := range pairs {
		name, _, _ := strings.Cut(pair, "=")
		plain, err := url.QueryUnescape(name)
		if err != nil {
			plain = name
		}
		if hidden([]string{plain}) || hidden(strings.FieldsFunc(plain, inBrackets)) {
			c.masked++
			pairs[i] = name + "=" + masked
		}
	}
	return strings.Join(pairs, "&")
}

// maskLines masks values in the lines of a text that are JSON. Others, such as a last line that was cut off, stay.
func (c *content) maskLines(text string, hidden func([]string) bool) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if json.Valid([]byte(line)) {
			lines[i] = c.maskIn(line, hidden)
		}
	}
	return strings.Join(lines, "\n")
}

func (c content) json(text string, hidden func([]string) bool, whole bool) content {
	p := tokens{hidden: hidden, most: shownBytes}
	if whole {
		p.most = len(text)
	}
	c.tokens, c.masked, c.cut = p.read(text)
	return c
}

// mask returns a function that reports which values are masked, by the names that lead to them.
func (s *site) mask(reveal bool) func(path []string) bool {
	if reveal {
		return func([]string) bool { return false }
	}
	pointers := make([][]string, len(s.config.Redact))
	unescape := strings.NewReplacer("~1", "/", "~0", "~")
	for i, pointer := range s.config.Redact {
		for segment := range strings.SplitSeq(pointer[1:], "/") {
			pointers[i] = append(pointers[i], unescape.Replace(segment))
		}
	}
	known := map[string]bool{}
	secret := func(name string) bool {
		plain := strings.TrimRight(name, "0123456789") // password2 becomes password; an index becomes ""
		if plain == "" {
			return false
		}
		is, ok := known[name]
		if !ok {
			is = secretName.MatchString(strings.TrimRight(plain, "_.-"))
			known[name] = is
		}
		return is
	}
	return func(path []string) bool {
		return len(path) > deepest || slices.ContainsFunc(path, secret) ||
			slices.ContainsFunc(pointers, func(p []string) bool {
				if len(p) > len(path) {
					return false
				}
				for i, segment := range p {
					if segment != "*" && segment != path[i] {
						return false
					}
				}
				return true
			})
	}
}

// secretName matches names whose values should not appear on a screen.
var secretName = regexp.MustCompile(
	`(?i)^tokens$|^(.*[_.-])?(pass|pass(word|wd|phrase)s?|pwds?|secrets?|token|(access|refresh|id|auth|api)[_-]?tokens|(api|private|access|secret|encryption)[_-]?keys?|authorization|credentials?|cookies?|ssn|cvv|cvc|pin)$|` +
		`(passwords?|secrets?|(api|private|access|secret|encryption)Keys?|(access|refresh|id|auth)Tokens?)$`)

// masked stands for a masked value.
const masked = "•••"

// tokens scans indented, valid JSON, and distinguishes names, strings, numbers and words.
type tokens struct {
	hidden func(path []string) bool
	most   int // bytes

	all    []token
	path   []string // names and indexes that lead to the current value
	array  []bool   // for each level, whether it is an array
	hides  int      // number of masked values
	plain  strings.Builder
	isName bool // the next string is a name
}

func (p *tokens) read(text string) (all []token, hides int, cut bool) {
	for i := 0; i < len(text); {
		if i >= p.most {
			cut = true
			break
		}
		n := 1
		switch c := text[i]; {
		case c == '"':
			n = stringLength(text[i:])
			p.string(text[i : i+n])
		case c == '-' || c >= '0' && c <= '9':
			n = len(text[i:]) - len(strings.TrimLeft(text[i:], "+-.0123456789eE"))
			p.value("number", text[i:i+n])
		case c >= 'a' && c <= 'z':
			n = len(text[i:]) - len(strings.TrimLeft(text[i:], "abcdefghijklmnopqrstuvwxyz"))
			p.value("word", text[i:i+n])
		default:
			p.mark(c)
		}
		i += n
	}
	p.flush()
	return p.all, p.hides, cut
}

// mark handles a character between values.
func (p *tokens) mark(c byte) {
	p.plain.WriteByte(c)
	switch c {
	case '{', '[':
		p.array, p.path, p.isName = append(p.array, c == '['), append(p.path, "0"), c == '{'
	case '}', ']':
		p.array, p.path, p.isName = p.array[:len(p.array)-1], p.path[:len(p.path)-1], false
	case ',':
		last := len(p.path) - 1
		p.isName = !p.array[last]
		if p.array[last] {
			n, _ := strconv.Atoi(p.path[last]) // written by this scanner
			p.path[last] = strconv.Itoa(n + 1)
		}
	}
}

func (p *tokens) string(text string) {
	if !p.isName {
		p.value("string", text)
		return
	}
	p.isName = false
	var name string
	_ = json.Unmarshal([]byte(text), &name) // valid; invalid UTF-8 becomes U+FFFD
	p.path[len(p.path)-1] = name
	p.add("name", text)
}

func (p *tokens) value(class, text string) {
	if p.hidden(p.path) {
		p.hides++
		class, text = "masked", masked
	}
	p.add(class, text)
}

// add adds a token. Beyond the maximum that a page distinguishes, the rest is a single token.
func (p *tokens) add(class, text string) {
	if len(p.all) >= mostTokens {
		p.plain.WriteString(text)
		return
	}
	p.flush()
	p.all = append(p.all, token{class, text})
}

func (p *tokens) flush() {
	if p.plain.Len() > 0 {
		p.all = append(p.all, token{"", p.plain.String()})
		p.plain.Reset()
	}
}

// stringLength returns the length of the string with which a text begins.
func stringLength(text string) int {
	for i := 1; i < len(text); i++ {
		switch text[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return len(text)
}
