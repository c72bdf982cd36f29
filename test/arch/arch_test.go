package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// source is one Go file of the module.
type source struct {
	name string // path in the repository
	pkg  string // folder
	test bool
	ast  *ast.File
	fset *token.FileSet
}

func (s source) at(n ast.Node) string {
	return s.name + ":" + strconv.Itoa(s.fset.Position(n.Pos()).Line)
}

// imports returns what the file imports, packages of the module as folders.
func (s source) imports() []string {
	var list []string
	for _, im := range s.ast.Imports {
		p, _ := strconv.Unquote(im.Path.Value)
		list = append(list, strings.TrimPrefix(p, "stage/"))
	}
	return list
}

// sources parses every Go file, whatever its build tags.
func sources(t *testing.T) []source {
	t.Helper()
	var list []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(p) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		list = append(list, source{name, path.Dir(name), strings.HasSuffix(p, "_test.go"), f, fset})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// isTest reports whether the file is part of tests only.
func (s source) isTest() bool { return s.test || isForTests(s.pkg) }

func isForTests(pkg string) bool {
	return strings.HasPrefix(pkg, "test/") || slices.Contains(forTests, pkg)
}

func TestImportsGoDown(t *testing.T) {
	for _, s := range sources(t) {
		if s.isTest() || s.pkg == "." {
			continue
		}
		level, known := levels[s.pkg]
		if !known {
			t.Errorf("%s: package %s has no level", s.name, s.pkg)
			continue
		}
		for _, im := range s.imports() {
			if isForTests(im) {
				t.Errorf("%s: imports %s, which is for tests", s.name, im)
			}
			to, ours := levels[im]
			if !ours || to < level || to == level && sideways[[2]string{s.pkg, im}] != "" {
				continue
			}
			t.Errorf("%s: imports %s (level %d) from level %d", s.name, im, to, level)
		}
	}
}

func TestEveryLevelNamesAPackage(t *testing.T) {
	for pkg := range levels {
		if found, _ := filepath.Glob(filepath.Join(root, pkg, "*.go")); len(found) == 0 {
			t.Errorf("%s has a level and no Go file", pkg)
		}
	}
}

func TestStrangersStayApart(t *testing.T) {
	family := func(pkg string) string {
		top, _, _ := strings.Cut(pkg, "/")
		if slices.Contains(strangers, top) {
			return top
		}
		return ""
	}
	for _, s := range sources(t) {
		for _, im := range s.imports() {
			if a, b := family(s.pkg), family(im); a != "" && b != "" && a != b && !s.isTest() {
				t.Errorf("%s: %s imports %s", s.name, a, b)
			}
		}
	}
}

func TestDependenciesStayInTheirPackages(t *testing.T) {
	for _, s := range sources(t) {
		if s.pkg == "." { // deps.go keeps versions pinned
			continue
		}
		for _, im := range s.imports() {
			for dep, allowed := range only {
				if im != dep && !strings.HasPrefix(im, dep+"/") {
					continue
				}
				isTest := slices.Contains(allowed, "test") && s.isTest()
				if !isTest && !slices.Contains(allowed, s.pkg) {
					t.Errorf("%s: imports %s, which is for %s", s.name, im, strings.Join(allowed, ", "))
				}
			}
		}
	}
}

func TestPurePackagesMakeNoSystemCalls(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || !slices.Contains(pure, s.pkg) {
			continue
		}
		for _, im := range s.imports() {
			for _, bad := range systemCalls {
				if im == bad || strings.HasPrefix(im, bad+"/") {
					t.Errorf("%s: imports %s", s.name, im)
				}
			}
		}
	}
}

func TestPackageNamesSaySomething(t *testing.T) {
	for _, s := range sources(t) {
		if name := s.ast.Name.Name; slices.Contains(emptyNames, name) || slices.Contains(emptyNames, path.Base(s.pkg)) {
			t.Errorf("%s: package %s in %s", s.name, name, s.pkg)
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range sources(t) {
		if !s.test && s.pkg != "." {
			documented[s.pkg] = documented[s.pkg] || s.ast.Doc != nil
		}
	}
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment", pkg)
		}
	}
}

func TestBannedCalls(t *testing.T) {
	for _, s := range sources(t) {
		ast.Inspect(s.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok {
				if instead := bannedCalls[x.Name+"."+sel.Sel.Name]; instead != "" {
					t.Errorf("%s: %s.%s: write %s", s.at(n), x.Name, sel.Sel.Name, instead)
				}
			}
			return true
		})
	}
}

func TestNoInit(t *testing.T) {
	for _, s := range sources(t) {
		for f := range functions(s) {
			if f.Recv == nil && f.Name.Name == "init" && !slices.Contains(initFiles, s.name) {
				t.Errorf("%s: func init", s.at(f))
			}
		}
	}
}

func functions(s source) func(func(*ast.FuncDecl) bool) {
	return func(yield func(*ast.FuncDecl) bool) {
		for _, d := range s.ast.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && !yield(f) {
				return
			}
		}
	}
}

func TestLongFunctionsSayWhy(t *testing.T) {
	var lengths []int
	for _, s := range sources(t) {
		for f := range functions(s) {
			if f.Body == nil || s.isTest() {
				continue
			}
			lines := s.fset.Position(f.End()).Line - s.fset.Position(f.Pos()).Line + 1
			lengths = append(lengths, lines)
			if lines > longest && f.Doc == nil {
				t.Errorf("%s: %s has %d lines and no comment that says why", s.at(f), f.Name.Name, lines)
			}
		}
	}
	slices.Sort(lengths)
	if n := len(lengths); n > 0 {
		t.Logf("%d functions: half have at most %d lines, nine in ten %d, the longest %d", n, lengths[n/2], lengths[n*9/10], lengths[n-1])
	}
}

// ofEveryError are methods that mean the same on every error type.
var ofEveryError = []string{"Error", "Unwrap", "Is"}

func TestExportedNamesHaveComments(t *testing.T) {
	for _, s := range sources(t) {
		if s.test || s.pkg == "." {
			continue
		}
		for _, d := range s.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && receiverExported(d) && d.Doc == nil && !slices.Contains(ofEveryError, d.Name.Name) {
					t.Errorf("%s: %s has no comment", s.at(d), d.Name.Name)
				}
			case *ast.GenDecl:
				checkSpecs(t, s, d)
			}
		}
	}
}

// receiverExported is true for functions as well. A method of an unexported type is documented by
// the interface it is there for.
func receiverExported(f *ast.FuncDecl) bool {
	if f.Recv == nil {
		return true
	}
	typ := f.Recv.List[0].Type
	if p, ok := typ.(*ast.StarExpr); ok {
		typ = p.X
	}
	if g, ok := typ.(*ast.IndexExpr); ok {
		typ = g.X
	}
	id, ok := typ.(*ast.Ident)
	return !ok || id.IsExported()
}

// checkSpecs takes a comment on a group for all of it.
func checkSpecs(t *testing.T, s source, d *ast.GenDecl) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() && d.Doc == nil && spec.Doc == nil {
				t.Errorf("%s: type %s has no comment", s.at(spec), spec.Name.Name)
			}
		case *ast.ValueSpec:
			if spec.Names[0].IsExported() && d.Doc == nil && spec.Doc == nil && spec.Comment == nil {
				t.Errorf("%s: %s has no comment", s.at(spec), spec.Names[0].Name)
			}
		}
	}
}

var (
	openEnd   = regexp.MustCompile(`\b(TODO|FIXME|XXX|HACK)\b`)
	withIssue = regexp.MustCompile(`\b(TODO|FIXME)\(#\d+\)`)
)

func TestOpenEndsNameAnIssue(t *testing.T) {
	for _, s := range sources(t) {
		if s.pkg == "test/arch" {
			continue
		}
		for _, group := range s.ast.Comments {
			for _, c := range group.List {
				if openEnd.MatchString(c.Text) && !withIssue.MatchString(c.Text) {
					t.Errorf("%s: %s", s.at(c), c.Text)
				}
			}
		}
	}
}

func TestTopLevelLayout(t *testing.T) {
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !slices.Contains(topLevel, e.Name()) && !ignored(e.Name()) {
			t.Errorf("%s does not belong at the top", e.Name())
		}
	}
}

func ignored(name string) bool {
	return exec.Command("git", "-C", root, "check-ignore", "-q", name).Run() == nil
}

func TestGoModReplacesNothing(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if regexp.MustCompile(`(?m)^\s*replace\b`).Match(text) {
		t.Error("go.mod has a replace directive")
	}
}
