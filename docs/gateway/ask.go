package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
)

const question = `{"domain": "site", "descriptors": [{"entries": [
	{"key": "generic_key", "value": "mail"}, {"key": "user", "value": "7"}]}]}`

func main() {
	request, _ := http.NewRequest("POST", os.Getenv("GATEWAY")+"/json", strings.NewReader(question))
	request.Header.Set("X-RateLimit-Secret", os.Getenv("SECRET"))
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		panic(err)
	}
	var decided struct {
		OverallCode string
		Statuses    []struct{ LimitRemaining int }
	}
	if err := json.NewDecoder(response.Body).Decode(&decided); err != nil {
		panic(response.Status)
	}
	fmt.Println(decided.OverallCode, decided.Statuses[0].LimitRemaining, "left")
}
