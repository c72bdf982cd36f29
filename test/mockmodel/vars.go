package mockmodel

import (
	"fmt"
	"regexp"
)

// lastOutput is the variable every script has: the newest tool output.
const lastOutput = "last_output"

var variable = regexp.MustCompile(`\{\{(\w+)\}\}`)

// texts are the parts of a turn in which variables are replaced.
func (t *Turn) texts() []*string {
	list := []*string{&t.Think, &t.Say, &t.Patch, &t.Final}
	for i := range t.Run {
		list = append(list, &t.Run[i])
	}
	return list
}

func (s Script) checkVars(t Turn) error {
	for _, text := range t.texts() {
		for _, m := range variable.FindAllStringSubmatch(*text, -1) {
			if _, declared := s.Vars[m[1]]; !declared && m[1] != lastOutput {
				return fmt.Errorf("variable %q is not declared in vars", m[1])
			}
		}
	}
	return nil
}

// expand returns t with its variables replaced.
func (s Script) expand(t Turn, given map[string]string, output string) (Turn, error) {
	t.Run = append([]string(nil), t.Run...)
	for _, text := range t.texts() {
		var err error
		*text = variable.ReplaceAllStringFunc(*text, func(ref string) string {
			name := ref[2 : len(ref)-2]
			if name == lastOutput {
				return output
			}
			if v, ok := given[name]; ok {
				return v
			}
			if v := s.Vars[name]; v != nil {
				return *v
			}
			err = fmt.Errorf("variable %q has no value", name)
			return ref
		})
		if err != nil {
			return Turn{}, err
		}
	}
	return t, nil
}
