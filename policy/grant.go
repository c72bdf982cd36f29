package policy

import (
	"cmp"
	"slices"
)

// target is what an allow list or a limit is about.
type target struct {
	dimension Dimension
	object    string
}

// allowed are the targets of allow lists.
func allowed() []target {
	return []target{{FileReads, "read"}, {FileWrites, "stage"}, {FileWrites, "share"}, {FileWrites, "scratch"},
		{Network, "host"}, {Credentials, "env"}}
}

// allowList is one party's list. Something is allowed by it when one of its rules matches.
type allowList struct {
	opinion Rule // names the list in messages where no rule matches
	rules   []Rule
}

func (l allowList) compare(o allowList) int {
	return cmp.Or(l.opinion.compare(o.opinion), slices.CompareFunc(l.rules, o.rules, Rule.compare))
}

// grant is what one party, or several together, permit. It is a point of a lattice whose meet
// narrows: something is allowed when every allow list of its target allows it and no restriction
// matches; of limits the lowest holds. The zero grant is no opinion at all.
type grant struct {
	allow    map[target][]allowList // sorted, without repetition
	restrict []Rule                 // Deny and Hide, sorted, without repetition
	limits   map[target]Rule
}

// newGrant groups the rules of one party.
func newGrant(rules []Rule) grant {
	g := grant{allow: map[target][]allowList{}, limits: map[target]Rule{}}
	lists := map[target]allowList{}
	for _, r := range rules {
		t := target{r.Dimension, r.Object}
		switch r.Verb {
		case Allow:
			l, ok := lists[t]
			if !ok {
				l.opinion = Rule{r.Dimension, Allow, r.Object, "", r.Source}
			}
			if r.Value != "" {
				l.rules = append(l.rules, r)
			}
			lists[t] = l
		case Limit:
			g.limit(t, r)
		default: // Deny, Hide, and whatever else: it restricts
			g.restrict = append(g.restrict, r)
		}
	}
	for t, l := range lists {
		l.rules = canonical(l.rules, Rule.compare)
		g.allow[t] = []allowList{l}
	}
	g.restrict = canonical(g.restrict, Rule.compare)
	return g
}

// canonical sorts a list and drops repetitions.
func canonical[T any](s []T, compare func(T, T) int) []T {
	slices.SortFunc(s, compare)
	return slices.CompactFunc(s, func(a, b T) bool { return compare(a, b) == 0 })
}

// limit keeps the lower of r and what is there; of two equals that with the lesser source.
func (g *grant) limit(t target, r Rule) {
	old, ok := g.limits[t]
	if !ok || cmp.Or(compareLimits(t.object, r.Value, old.Value), r.compare(old)) < 0 {
		g.limits[t] = r
	}
}

// meet returns what both g and o permit.
func (g grant) meet(o grant) grant {
	m := grant{allow: map[target][]allowList{}, limits: map[target]Rule{}}
	m.restrict = canonical(slices.Concat(g.restrict, o.restrict), Rule.compare)
	for _, side := range []grant{g, o} {
		for t, lists := range side.allow {
			m.allow[t] = append(m.allow[t], lists...)
		}
		for t, r := range side.limits {
			m.limit(t, r)
		}
	}
	for t, lists := range m.allow {
		m.allow[t] = canonical(lists, allowList.compare)
	}
	return m
}

// grant returns the request's grant. What it does not ask for it does not allow, so it has an
// opinion on everything; its own limits apply once, the last one given.
func (r Request) grant() grant {
	g := newGrant(r.Rules)
	for _, t := range allowed() {
		lists := g.allow[t]
		if len(lists) == 0 {
			lists = []allowList{{}}
		}
		lists[0].opinion = Rule{}
		g.allow[t] = lists
	}
	for _, t := range []target{{Network, "mode"}, {Subprocesses, "userns"}} {
		if _, ok := g.limits[t]; !ok {
			g.limits[t] = notRequested(t)
		}
	}
	return g
}

// notRequested is the limit of what was not asked for: nothing.
func notRequested(t target) Rule {
	r := Rule{Dimension: t.dimension, Verb: Limit, Object: t.object, Value: "false", Source: Source{Layer: FromFlag, File: "not requested"}}
	if t.object == "mode" {
		r.Value = string(NetNone)
	}
	return r
}
