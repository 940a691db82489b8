package console

import "testing"

func TestNamesOfSecretsAreKnown(t *testing.T) {
	t.Parallel()
	hidden := new(site).mask(false)
	for name, want := range map[string]bool{
		"password": true, "passwords": true, "password2": true, "password_2": true, "user_password": true, "newPassword": true, "pass": true,
		"max_tokens": false, "total_tokens": false, "refresh_tokens": true, "token": true, "tokens": true, "access_token": true, "accessTokens": true, "secret": true, "secrets": true, "clientSecret": true,
		"access_key": true, "accessKey": true, "aws_access_key": true, "awsAccessKey": true, "secret_key": true, "secretKey": true, "secretkey": true,
		"encryption_key": true, "encryptionKey": true, "X-Api-Key": true, "apiKeys": true, "private_key1": true, "cookies": true,
		"0": false, "17": false, "key": false, "key1": false, "to": false, "compass": false, "secretary": false, "tokenizer": false, "sha256": false, "": false,
	} {
		if got := hidden([]string{"lines", "0", name}); got != want {
			t.Errorf("%q is hidden: %t, want %t", name, got, want)
		}
	}
}
