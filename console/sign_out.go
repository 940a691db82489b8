package console

import (
	"log/slog"
	"net/http"

	"github.com/a-h/templ"

	"github.com/posthaste-dev/posthaste/access"
)

// signOut ends the session. People who signed in at the provider are led on to sign out there, too, if it supports
// that: by a page, because the console's policy lets no form lead elsewhere. They go there by themselves unless they
// have to read that other processes still accept the cookie.
func (s *site) signOut(v *visit) error {
	s.cookie.forget(v.w)
	kept, ok := s.cookie.read(v.r, v.now)
	if !ok {
		return v.redirect("login")
	}
	fault := s.end(v, kept)
	to := s.endAtProvider(v, kept)
	if fault == "" && to == "" {
		return v.redirect("login")
	}
	v.who, v.known, v.kept = access.Principal{}, false, nil
	v.moveTo("login", nil)
	if fault != "" {
		v.status = http.StatusServiceUnavailable
	} else {
		v.w.Header().Set("Refresh", "0; url="+to)
	}
	return v.render(signedOutPage(v, templ.SafeURL(to), fault))
}

// end ends a session, in other processes if the database records it; if not, end returns what the person has to know.
func (s *site) end(v *visit, kept session) (fault string) {
	err := s.ended.End(v.ctx(), kept.id(), kept.left(v.now))
	if err == nil {
		return ""
	}
	s.log.LogAttrs(v.ctx(), slog.LevelWarn, "session ended in this process only", slog.String("request_id", v.id),
		slog.Any("who", v.who), slog.String("err", err.Error()))
	remedy := "revoke your token"
	if kept.Person != nil {
		remedy = "end your sessions at the provider"
	}
	return "The database could not record that you signed out. Until " + v.clock(kept.Ends) + " " + v.zoneName() +
		", other processes of this console accept a copy of your cookie. If somebody may have one, " + remedy + "."
}

// endAtProvider returns where a person signs out at the provider; "" if nowhere.
func (s *site) endAtProvider(v *visit, kept session) string {
	if kept.Person == nil || s.persons == nil {
		return ""
	}
	return s.persons.EndURL(v.ctx(), s.persons.latest(kept).IDToken, s.public.JoinPath("login").String())
}
