package render

import (
	"fmt"
	"strings"

	"stage/bundle"
)

// Plan writes the admission plan: per dimension what is to be installed and the rules it carries
// out, each with the place it comes from. It is what is intended, and never said to be in force.
func Plan(s *Screen, plan *bundle.Plan) error {
	p := newPrinter(s)
	p.field("Preset", Printable(plan.Preset.Name)+" ("+Printable(plan.Preset.Source)+")")
	for _, l := range plan.Layers {
		path := "built in"
		if l.Path != nil {
			path = Printable(l.Path.String())
		}
		p.field("Layer", string(l.Name)+": "+path+", "+Plural(len(l.Rules), "rule"))
	}
	for _, d := range bundle.Dimensions() {
		p.line(plain, "")
		p.line(bold, string(d))
		for _, r := range *plan.Request.At(d) {
			p.rule("requested", r)
		}
		for _, c := range *plan.Plan.At(d) {
			p.planned(c)
		}
	}
	p.env(plan)
	return p.w.Flush()
}

func (p *printer) planned(c bundle.PlannedControl) {
	need := "optional"
	if c.Required {
		need = "required"
	}
	fmt.Fprintf(p.w, "  %-16s %-11s %s: %s\n", c.ID, c.Level, need, Printable(c.Mechanism))
	for _, r := range c.Rules {
		p.rule("", r)
	}
}

func (p *printer) rule(lead string, r bundle.Rule) {
	text := string(r.Verb) + " " + Printable(r.Object)
	if r.Value != nil {
		text += " " + Printable(*r.Value)
	}
	if lead != "" {
		lead += " "
	}
	fmt.Fprintf(p.w, "    %s%s  (%s)\n", lead, text, sourceText(r.Source))
}

// sourceText is where a rule comes from, as a compiler would write it.
func sourceText(s bundle.Source) string {
	text := string(s.Layer)
	if s.File != nil {
		text += " " + Printable(string(*s.File))
		if s.Line != nil {
			text += fmt.Sprintf(":%d", *s.Line)
		}
	}
	return text
}

func (p *printer) env(plan *bundle.Plan) {
	p.line(plain, "")
	p.line(bold, "environment")
	p.w.WriteString("  passed: " + words(plan.Env.Passed) + "\n")
	p.w.WriteString("  dropped: " + words(plan.Env.Dropped) + "\n")
	for _, f := range plan.Preset.Files {
		p.w.WriteString("  preset file: " + Printable(f.String()) + "\n")
	}
	for _, e := range plan.Preset.ConfigEdits {
		p.w.WriteString("  preset edit: " + Printable(e.File.String()) + ": " + Printable(e.Key) + " = " + Printable(e.Value) + "\n")
	}
	for _, c := range plan.DegradedAllowed {
		p.w.WriteString("  allowed to be missing: " + string(c) + "\n")
	}
}

func words(l []bundle.Word) string {
	if len(l) == 0 {
		return "none"
	}
	return Printable(strings.Join(bundle.Strings(l), " "))
}

// PlanJSON writes plan.json.
func PlanJSON(s *Screen, plan *bundle.Plan) error { return document(s, plan) }
