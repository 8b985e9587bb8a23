import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.broker.schedule.ScheduleMessageService;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;

/** RocketMQ's delivery of delay levels beside a store, put together as BrokerController does. */
final class Delays {
    private Delays() {
    }

    static ScheduleMessageService beside(
            DefaultMessageStore store, MessageStoreConfig config, BrokerConfig broker) {
        BrokerController controller = new BrokerController(
            broker, new NettyServerConfig(), new NettyClientConfig(), config);
        controller.setMessageStore(store);
        return new ScheduleMessageService(controller);
    }
}
