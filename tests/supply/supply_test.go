// Package supply tests what programs consist of.
package supply

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

func run(t *testing.T, args ...string) (output []byte) {
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	output, err := cmd.CombinedOutput()
	require.NoError(t, err, "go %s\n%.2000s", strings.Join(args, " "), output)
	return output
}

// TestBillOfMaterials: what make sbom writes has each module of throttle-admin, in its version.
func TestBillOfMaterials(t *testing.T) {
	if os.Getenv("THROTTLE_LONG") == "" {
		t.Skip("builds cyclonedx-gomod, which takes a minute: make test-long")
	}
	binary := filepath.Join(t.TempDir(), "throttle-admin")
	run(t, "build", "-trimpath", "-o", binary, "./cmd/throttle-admin")
	run(t, "tool", "-modfile=tools/go.mod", "cyclonedx-gomod", "bin", "-json", "-std", "-noserial",
		"-output", binary+".json", binary)
	text, err := os.ReadFile(binary + ".json")
	require.NoError(t, err)
	var bill struct {
		Components []struct{ Name, Version string }
	}
	require.NoError(t, json.Unmarshal(text, &bill))
	has := map[string]string{}
	for _, c := range bill.Components {
		has[c.Name] = c.Version
	}
	info, err := buildinfo.ReadFile(binary)
	require.NoError(t, err)
	require.NotEmpty(t, info.Deps)
	for _, m := range info.Deps {
		assert.Equal(t, m.Version, has[m.Path], m.Path)
	}
	assert.Contains(t, has, "std")
}

// avro is a module with known faults in its decoder, which pulsar-client-go links for schemas.
const avro = "github.com/hamba/avro/"

// shared matches read-only data that the linker keeps once for all functions with the same, under
// the name of one of them.
var shared = regexp.MustCompile(`\.\.stmp_|\.arg(live)?info\d*$|\.wrapinfo$`)

// TestAvroIsOnlyForSchemas: in a consumer, only schemas of pulsar-client-go need avro, and nothing
// of this module needs those. The decoder is in the binary all the same, since a message has the
// method GetSchemaValue, which no code of this module mentions.
func TestAvroIsOnlyForSchemas(t *testing.T) {
	if testing.Short() {
		t.Skip("slow with the race detector")
	}
	dump := run(t, "build", "-ldflags=-dumpdep", "-o", filepath.Join(t.TempDir(), "consumer"), "./examples/pulsar")
	const client = "github.com/apache/pulsar-client-go/pulsar."
	schemas := 0
	for line := range bytes.Lines(dump) {
		from, to, ok := strings.Cut(strings.TrimSpace(string(line)), " -> ")
		if !ok || shared.MatchString(to) {
			continue
		}
		if strings.Contains(to, avro) && strings.HasPrefix(from, client) {
			assert.Contains(t, from, "Schema", "needs %s", to)
			schemas++
		}
		if strings.HasPrefix(from, "github.com/dispatchthrottle/") || strings.HasPrefix(from, "main.") {
			assert.NotContains(t, to, avro, "of %s", from)
			assert.NotContains(t, to, client+"New", "of %s", from) // NewAvroSchema, for example
		}
	}
	assert.NotZero(t, schemas, "if avro is gone, so may be this test, and a paragraph of docs/security.md")
}

// TestNoSchemaValues: no code of this module decodes a message by its schema.
func TestNoSchemaValues(t *testing.T) {
	files := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if s, ok := n.(*ast.SelectorExpr); ok {
				assert.NotEqual(t, "GetSchemaValue", s.Sel.Name, files.Position(s.Pos()))
			}
			return true
		})
		return nil
	})
	require.NoError(t, err)
}
