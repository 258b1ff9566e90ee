// An NRI plugin for tests. It writes each event as a JSON line and does what a rules file says.
//
//	plugin -socket PATH -name N -idx 10 -log FILE -rules FILE [-retry 100ms]
//
// The rules are read anew at each event: {"CreateContainer": {"sleep_ms": 3000}}. See type rule.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// What to do at an event, in this order: wait, die, answer with an error, else with changes.
type rule struct {
	SleepMs int               `json:"sleep_ms"`
	Die     bool              `json:"die"`
	Error   string            `json:"error"`
	Adjust  json.RawMessage   `json:"adjust"`  // ContainerAdjustment as protobuf's JSON; CreateContainer only
	Updates []json.RawMessage `json:"updates"` // ContainerUpdate, likewise; events that may update
}

type plugin struct {
	log   *os.File
	rules string
	mu    sync.Mutex
}

// write adds one line; a message in fields is written as protobuf's JSON.
func (p *plugin) write(event string, fields map[string]any) {
	line := map[string]any{"event": event}
	for name, value := range fields {
		line[name] = value
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, err := p.log.Write(append(text, '\n')); err != nil {
		panic(err)
	}
}

func message(m proto.Message) json.RawMessage {
	text, err := protojson.Marshal(m)
	if err != nil {
		panic(err)
	}
	return text
}

func messages[M proto.Message](list []M) []json.RawMessage {
	out := make([]json.RawMessage, 0, len(list))
	for _, m := range list {
		out = append(out, message(m))
	}
	return out
}

// event logs and obeys; its answer is for those events that can have one.
func (p *plugin) event(name string, fields map[string]any) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	p.write(name, fields)
	text, err := os.ReadFile(p.rules)
	if err != nil {
		return nil, nil, err
	}
	rules := map[string]rule{}
	if err := json.Unmarshal(text, &rules); err != nil {
		return nil, nil, err
	}
	rule := rules[name]
	time.Sleep(time.Duration(rule.SleepMs) * time.Millisecond)
	if rule.Die {
		p.write("Died", nil)
		os.Exit(3)
	}
	if rule.Error != "" {
		return nil, nil, errors.New(rule.Error)
	}
	var adjust *api.ContainerAdjustment
	if rule.Adjust != nil {
		adjust = &api.ContainerAdjustment{}
		if err := protojson.Unmarshal(rule.Adjust, adjust); err != nil {
			return nil, nil, err
		}
	}
	var updates []*api.ContainerUpdate
	for _, text := range rule.Updates {
		update := &api.ContainerUpdate{}
		if err := protojson.Unmarshal(text, update); err != nil {
			return nil, nil, err
		}
		updates = append(updates, update)
	}
	return adjust, updates, nil
}

func (p *plugin) about(name string, pod *api.PodSandbox, container *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	fields := map[string]any{"pod": message(pod)}
	if container != nil {
		fields["container"] = message(container)
	}
	return p.event(name, fields)
}

func (p *plugin) notice(name string, pod *api.PodSandbox, container *api.Container) error {
	_, _, err := p.about(name, pod, container)
	return err
}

func (p *plugin) Configure(_ context.Context, config, runtime, version string) (api.EventMask, error) {
	_, _, err := p.event("Configure", map[string]any{"config": config, "runtime": runtime, "version": version})
	return 0, err // 0: all that the plugin has methods for
}

func (p *plugin) Synchronize(_ context.Context, pods []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	_, updates, err := p.event("Synchronize", map[string]any{"pods": messages(pods), "containers": messages(containers)})
	return updates, err
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.notice("RunPodSandbox", pod, nil)
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.notice("StopPodSandbox", pod, nil)
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.notice("RemovePodSandbox", pod, nil)
}

func (p *plugin) CreateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	return p.about("CreateContainer", pod, c)
}

func (p *plugin) PostCreateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.notice("PostCreateContainer", pod, c)
}

func (p *plugin) StartContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.notice("StartContainer", pod, c)
}

func (p *plugin) PostStartContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.notice("PostStartContainer", pod, c)
}

func (p *plugin) UpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container, to *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	_, updates, err := p.event("UpdateContainer", map[string]any{"pod": message(pod), "container": message(c), "resources": message(to)})
	return updates, err
}

func (p *plugin) PostUpdateContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.notice("PostUpdateContainer", pod, c)
}

func (p *plugin) StopContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	_, updates, err := p.about("StopContainer", pod, c)
	return updates, err
}

func (p *plugin) RemoveContainer(_ context.Context, pod *api.PodSandbox, c *api.Container) error {
	return p.notice("RemoveContainer", pod, c)
}

func main() {
	socket := flag.String("socket", "", "NRI socket")
	name := flag.String("name", "lab", "name to register with")
	index := flag.String("idx", "10", "two digits: the order among plugins")
	path := flag.String("log", "", "file to append events to")
	rules := flag.String("rules", "", "file with the rules")
	retry := flag.Duration("retry", 0, "connect again so long after the connection is lost; 0: exit then")
	flag.Parse()

	log, err := os.OpenFile(*path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		panic(err)
	}
	p := &plugin{log: log, rules: *rules}
	for {
		// A new one each time, as after a restart. Without OnClose the stub would exit by itself.
		s, err := stub.New(p, stub.WithSocketPath(*socket), stub.WithPluginName(*name), stub.WithPluginIdx(*index), stub.WithOnClose(func() {}))
		if err == nil {
			err = s.Run(context.Background())
		}
		why := "connection closed"
		if err != nil {
			why = err.Error()
		}
		p.write("Closed", map[string]any{"why": why})
		if *retry == 0 {
			return
		}
		time.Sleep(*retry)
	}
}
