package lines

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// Login is how a client logs in; tests/clients/login.py says what the variables are.
type Login struct {
	TLS       *tls.Config
	Mechanism string
	User      string
	Password  string
	Token     string
}

// ReadLogin returns the login that the variables name; nil: the server wants none.
func ReadLogin() (*Login, error) {
	ca := os.Getenv("LOGIN_CA")
	if ca == "" {
		return nil, nil
	}
	authority, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s has no certificate", ca)
	}
	login := &Login{
		TLS:       &tls.Config{RootCAs: roots},
		Mechanism: os.Getenv("LOGIN_MECHANISM"),
		User:      os.Getenv("LOGIN_USER"),
		Password:  os.Getenv("LOGIN_PASSWORD"),
	}
	if file := os.Getenv("LOGIN_CERTIFICATE"); file != "" {
		own, err := tls.LoadX509KeyPair(file, os.Getenv("LOGIN_KEY"))
		if err != nil {
			return nil, err
		}
		login.TLS.Certificates = []tls.Certificate{own}
	}
	if file := os.Getenv("LOGIN_TOKEN_FILE"); file != "" {
		token, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		login.Token = string(token)
	}
	return login, nil
}
