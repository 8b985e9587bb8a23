import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.nio.ByteBuffer;
import java.util.Map;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;

/** What a group of RocketMQ's consumers gets from a store, by the broker's own positions. */
final class Groups {
    private static final int AT_ONCE = 32;

    private Groups() {
    }

    static JSONObject consume(
            DefaultMessageStore store, BrokerConfig broker, String group, JSONArray topics)
            throws Exception {
        BrokerController controller = new BrokerController(
            broker, new NettyServerConfig(), new NettyClientConfig(),
            store.getMessageStoreConfig());
        controller.setMessageStore(store);
        controller.getTopicConfigManager().load();
        controller.getSubscriptionGroupManager().load();
        controller.getConsumerOffsetManager().load();
        Map<String, TopicConfig> known = controller.getTopicConfigManager().getTopicConfigTable();
        JSONArray got = new JSONArray();
        topics.add(MixAll.getRetryTopic(group)); // a clustering consumer subscribes to it itself
        for (int i = 0; i < topics.size(); i++) {
            TopicConfig topic = known.get(topics.getString(i));
            for (int queue = 0; topic != null && queue < topic.getReadQueueNums(); queue++) {
                take(store, controller, group, topic.getTopicName(), queue, got);
            }
        }
        controller.getConsumerOffsetManager().persist();
        JSONObject answer = new JSONObject();
        answer.put("got", got);
        answer.put("known", controller.getSubscriptionGroupManager()
            .getSubscriptionGroupTable().containsKey(group));
        return answer;
    }

    private static void take(DefaultMessageStore store, BrokerController controller, String group,
            String topic, int queue, JSONArray got)
            throws Exception {
        long next = controller.getConsumerOffsetManager().queryOffset(group, topic, queue);
        if (next < 0) { // as a consumer of CONSUME_FROM_LAST_OFFSET asks
            next = topic.startsWith(MixAll.RETRY_GROUP_TOPIC_PREFIX)
                ? 0 : store.getMaxOffsetInQueue(topic, queue);
        }
        while (next < store.getMaxOffsetInQueue(topic, queue)) {
            GetMessageResult result = store.getMessage(group, topic, queue, next, AT_ONCE, null);
            for (ByteBuffer one : result.getMessageBufferList()) {
                MessageExt message = MessageDecoder.decode(one, true);
                JSONObject found = new JSONObject();
                found.put("topic", topic);
                found.put("body", new String(message.getBody()));
                found.put("attempts", message.getReconsumeTimes());
                got.add(found);
            }
            next = result.getNextBeginOffset();
            result.release();
        }
        controller.getConsumerOffsetManager().commitOffset("judge", group, topic, queue, next);
    }
}
