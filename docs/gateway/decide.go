package main

import ("encoding/json"; "fmt"; "net/http"; "os"; "strings")

func main() {
	body := strings.NewReader(`{"charges": [{"limit": "mail", "identity": "ada@example.org"}]}`)
	ask, _ := http.NewRequest("POST", os.Getenv("GATEWAY")+"/decide", body)
	ask.Header.Set("Authorization", "Bearer "+os.Getenv("TOKEN"))
	answer, err := http.DefaultClient.Do(ask)
	if err != nil { panic(err) }
	var decided struct { Allowed bool; Decisions []struct { Remaining int } }
	json.NewDecoder(answer.Body).Decode(&decided)
	fmt.Println(decided.Allowed, decided.Decisions[0].Remaining, "left")
}
